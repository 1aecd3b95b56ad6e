#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <vector>

#include "framework/data/tokenizers/characters.h"
#include "framework/data/tokenizers/pattern.h"
#include "framework/data/tokenizers/pipeline_tokenizer.h"
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
Normalizer unicode_form(bool compose, bool compatible) {
  const int options = UTF8PROC_STABLE | (compose ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                      (compatible ? UTF8PROC_COMPAT : 0);
  const char32_t unchanged_below = compatible ? 0xA0 : compose ? 0x300 : 0xC0;
  return [options, unchanged_below](std::string& text, bool&) {
    if (all_below(text, unchanged_below)) return;
    utf8proc_uint8_t* result = nullptr;
    const auto size =
        utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), std::ssize(text),
                     &result, static_cast<utf8proc_option_t>(options));
    if (size < 0) throw std::bad_alloc();  // the text is valid
    text.assign(reinterpret_cast<const char*>(result), static_cast<size_t>(size));
    std::free(result);
  };
}

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

void lowercase(std::string& text, bool&) {
  rewrite(text, [](char32_t c, std::string& result) {
    if (c == 0x130)
      result += "i\u0307";
    else
      append_utf8(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))),
                  result);
  });
}

// Drops the characters of a class. The others become `become(c)`.
template <class IsDropped, class Become>
void drop(std::string& text, bool& at_start, const IsDropped& is_dropped, const Become& become) {
  if (!text.empty() && is_dropped(decode_utf8(text).value)) at_start = false;
  rewrite(text, [&](char32_t c, std::string& result) {
    if (!is_dropped(c)) append_utf8(become(c), result);
  });
}

void strip_accents(std::string& text, bool& at_start) {
  const auto is_mark = [](char32_t c) {
    return utf8proc_category_string(static_cast<utf8proc_int32_t>(c))[0] == 'M';
  };
  drop(text, at_start, is_mark, [](char32_t c) { return c; });
}

// SentencePiece's rules for translation: drops control characters, and makes others spaces.
void nmt(std::string& text, bool& at_start) {
  const auto is_control = [](char32_t c) {
    return (c >= 1 && c <= 8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F || c == 0x8F ||
           c == 0x9F;
  };
  const auto is_space = [](char32_t c) {
    return c == '\t' || c == '\n' || c == '\f' || c == '\r' || c == 0x1680 ||
           (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 ||
           c == 0xFEFF || c == 0xFFFD;
  };
  drop(text, at_start, is_control, [&](char32_t c) { return is_space(c) ? U' ' : c; });
}

Normalizer read_strip_normalizer(const JsonNode& node) {
  const bool left = node.at("strip_left").flag_or(false),
             right = node.at("strip_right").flag_or(false);
  return [left, right](std::string& text, bool& at_start) {
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
    if (!right) end = text.size();
    if (!left) begin = 0;
    if (begin > 0) at_start = false;
    text = text.substr(begin, std::max(begin, end) - begin);
  };
}

Normalizer read_prepend(const JsonNode& node) {
  return [front = node.at("prepend").text()](std::string& text, bool&) {
    if (!text.empty()) text.insert(0, front);
  };
}

Normalizer read_replace(const JsonNode& node) {
  return [find = read_pattern(node.at("pattern")), by = node.at("content").text()](
             std::string& text, bool& at_start) {
    std::vector<Span> spans;
    find(text, spans);
    if (std::ranges::none_of(spans, &Span::is_match)) return;
    const std::string_view first = std::string_view(text).substr(0, spans[0].end);
    if (spans[0].is_match && !first.empty() &&
        (by.empty() || decode_utf8(first).bytes < first.size()))
      at_start = false;
    text = replaced(text, spans, by);
  };
}

// Appends all normalizers, those of sequences in it too.
void read_parts(const JsonNode& node, std::vector<Normalizer>& all) {
  for (const JsonNode& part : node.at("normalizers").list())
    if (part.is_object() && part.at("type").text() == "Sequence")
      read_parts(part, all);
    else if (auto normalizer = read_normalizer(part))
      all.push_back(std::move(normalizer));
}

Normalizer read_normalizer_sequence(const JsonNode& node) {
  std::vector<Normalizer> all;
  read_parts(node, all);
  return [all](std::string& text, bool& at_start) {
    const size_t bytes = text.size();
    for (const Normalizer& normalizer : all) {
      normalizer(text, at_start);
      check_growth(bytes, text.size());
    }
  };
}

}  // namespace

Normalizer read_normalizer(const JsonNode& node) {
  if (node.is_null()) return nullptr;
  const std::string& type = node.at("type").text();
  if (type == "NFC") return unicode_form(true, false);
  if (type == "NFD") return unicode_form(false, false);
  if (type == "NFKC") return unicode_form(true, true);
  if (type == "NFKD") return unicode_form(false, true);
  if (type == "Lowercase") return lowercase;
  if (type == "StripAccents") return strip_accents;
  if (type == "Nmt") return nmt;
  if (type == "Strip") return read_strip_normalizer(node);
  if (type == "Prepend") return read_prepend(node);
  if (type == "Replace") return read_replace(node);
  if (type == "Precompiled")
    return [map = read_precompiled_map(node.at("precompiled_charsmap"))](std::string& text, bool&) {
      text = map(text);
    };
  if (type == "ByteLevel") return [](std::string& text, bool&) { text = spell_bytes(text); };
  if (type == "Sequence") return read_normalizer_sequence(node);
  node.at("type").refuse("is " + printable(type) + ", a normalizer that is not supported");
}

}  // namespace anymesh
