#include "framework/data/tokenizers/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <vector>

#include "framework/data/tokenizers/characters.h"
#include "framework/data/tokenizers/pattern.h"
#include "framework/data/tokenizers/precompiled_map.h"
#include "framework/util/utf8.h"

namespace anymesh {
namespace {

bool all_below(std::string_view text, char32_t limit) {
  while (!text.empty()) {
    const CodePoint c = decode_utf8(text);
    if (c.value >= limit) return false;
    text.remove_prefix(c.bytes);
  }
  return true;
}

// NFC, NFD, NFKC and NFKD.
class UnicodeForm final : public Normalizer {
 public:
  UnicodeForm(bool compose, bool compatible)
      : options_(UTF8PROC_STABLE | (compose ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                 (compatible ? UTF8PROC_COMPAT : 0)),
        unchanged_below_(compatible ? 0xA0
                         : compose  ? 0x300
                                    : 0xC0) {}

  void apply(std::string& text, bool&) const override {
    if (all_below(text, unchanged_below_)) return;
    utf8proc_uint8_t* result = nullptr;
    const auto size =
        utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), std::ssize(text),
                     &result, static_cast<utf8proc_option_t>(options_));
    if (size < 0) throw std::bad_alloc();  // the text is valid
    text.assign(reinterpret_cast<const char*>(result), static_cast<size_t>(size));
    std::free(result);
  }

 private:
  int options_;
  char32_t unchanged_below_;
};

// Calls write(character, result) for each character.
template <class Write>
void rewrite(std::string& text, const Write& write) {
  std::string result;
  result.reserve(text.size());
  for (std::string_view rest = text; !rest.empty();) {
    const CodePoint c = decode_utf8(rest);
    write(c.value, result);
    rest.remove_prefix(c.bytes);
  }
  text = std::move(result);
}

class Lowercase final : public Normalizer {
 public:
  void apply(std::string& text, bool&) const override {
    rewrite(text, [](char32_t c, std::string& result) {
      if (c == 0x130)
        result += "i\u0307";
      else
        append_utf8(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))),
                    result);
    });
  }
};

class StripAccents final : public Normalizer {
 public:
  void apply(std::string& text, bool& at_start) const override {
    const auto is_mark = [](char32_t c) {
      return utf8proc_category_string(static_cast<utf8proc_int32_t>(c))[0] == 'M';
    };
    if (!text.empty() && is_mark(decode_utf8(text).value)) at_start = false;
    rewrite(text, [&](char32_t c, std::string& result) {
      if (!is_mark(c)) append_utf8(c, result);
    });
  }
};

// SentencePiece's rules for translation: drops control characters, and makes others spaces.
class Nmt final : public Normalizer {
 public:
  void apply(std::string& text, bool& at_start) const override {
    if (!text.empty() && is_dropped(decode_utf8(text).value)) at_start = false;
    rewrite(text, [&](char32_t c, std::string& result) {
      if (!is_dropped(c)) append_utf8(is_space(c) ? ' ' : c, result);
    });
  }

 private:
  static bool is_dropped(char32_t c) {
    return (c >= 1 && c <= 8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F || c == 0x8F ||
           c == 0x9F;
  }
  static bool is_space(char32_t c) {
    return c == '\t' || c == '\n' || c == '\f' || c == '\r' || c == 0x1680 ||
           (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 ||
           c == 0xFEFF || c == 0xFFFD;
  }
};

class Strip final : public Normalizer {
 public:
  explicit Strip(const JsonNode& node)
      : left_(node.at("strip_left").flag_or(false)),
        right_(node.at("strip_right").flag_or(false)) {}

  void apply(std::string& text, bool& at_start) const override {
    size_t begin = 0, end = 0;  // end: behind the last character that stays
    bool leading = true;
    for (size_t at = 0; at < text.size();) {
      const CodePoint c = decode_utf8(std::string_view(text).substr(at));
      const bool space = is_white_space(c.value);
      leading = leading && space;
      at += c.bytes;
      if (leading) begin = at;
      if (!space) end = at;
    }
    if (!right_) end = text.size();
    if (!left_) begin = 0;
    if (begin > 0) at_start = false;
    text = text.substr(begin, std::max(begin, end) - begin);
  }

 private:
  bool left_, right_;
};

class Prepend final : public Normalizer {
 public:
  explicit Prepend(const JsonNode& node) : text_(node.at("prepend").text()) {}
  void apply(std::string& text, bool&) const override {
    if (!text.empty()) text.insert(0, text_);
  }

 private:
  std::string text_;
};

class Replace final : public Normalizer {
 public:
  explicit Replace(const JsonNode& node)
      : pattern_(node.at("pattern")), content_(node.at("content").text()) {}

  void apply(std::string& text, bool& at_start) const override {
    std::vector<Span> spans;
    pattern_.find_all(text, spans);
    if (std::ranges::none_of(spans, &Span::is_match)) return;
    const std::string_view first = std::string_view(text).substr(0, spans[0].end);
    if (spans[0].is_match && !first.empty() &&
        (content_.empty() || decode_utf8(first).bytes < first.size()))
      at_start = false;
    text = Pattern::replaced(text, spans, content_);
  }

 private:
  Pattern pattern_;
  std::string content_;
};

class Precompiled final : public Normalizer {
 public:
  explicit Precompiled(const JsonNode& node) : map_(node.at("precompiled_charsmap")) {}
  void apply(std::string& text, bool&) const override { text = map_.apply(text); }

 private:
  PrecompiledMap map_;
};

class SpellBytes final : public Normalizer {
 public:
  void apply(std::string& text, bool&) const override { text = spell_bytes(text); }
};

// All parts, those of sequences in it too.
class NormalizerSequence final : public Normalizer {
 public:
  explicit NormalizerSequence(const JsonNode& node) { read(node); }
  void apply(std::string& text, bool& at_start) const override {
    const size_t bytes = text.size();
    for (const auto& part : parts_) {
      part->apply(text, at_start);
      check_growth(bytes, text.size());
    }
  }

 private:
  void read(const JsonNode& node) {
    for (const JsonNode& part : node.at("normalizers").list())
      if (part.is_object() && part.at("type").text() == "Sequence")
        read(part);
      else if (auto normalizer = read_normalizer(part))
        parts_.push_back(std::move(normalizer));
  }

  std::vector<std::unique_ptr<Normalizer>> parts_;
};

}  // namespace

std::unique_ptr<Normalizer> read_normalizer(const JsonNode& node) {
  if (node.is_null()) return nullptr;
  const std::string& type = node.at("type").text();
  if (type == "NFC") return std::make_unique<UnicodeForm>(true, false);
  if (type == "NFD") return std::make_unique<UnicodeForm>(false, false);
  if (type == "NFKC") return std::make_unique<UnicodeForm>(true, true);
  if (type == "NFKD") return std::make_unique<UnicodeForm>(false, true);
  if (type == "Lowercase") return std::make_unique<Lowercase>();
  if (type == "StripAccents") return std::make_unique<StripAccents>();
  if (type == "Nmt") return std::make_unique<Nmt>();
  if (type == "Strip") return std::make_unique<Strip>(node);
  if (type == "Prepend") return std::make_unique<Prepend>(node);
  if (type == "Replace") return std::make_unique<Replace>(node);
  if (type == "Precompiled") return std::make_unique<Precompiled>(node);
  if (type == "ByteLevel") return std::make_unique<SpellBytes>();
  if (type == "Sequence") return std::make_unique<NormalizerSequence>(node);
  node.at("type").refuse("is " + printable(type) + ", a normalizer that is not supported");
}

}  // namespace anymesh
