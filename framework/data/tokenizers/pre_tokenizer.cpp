#include "framework/data/tokenizers/pre_tokenizer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "framework/data/tokenizers/characters.h"
#include "framework/data/tokenizers/gpt2_words.h"
#include "framework/data/tokenizers/pattern.h"
#include "framework/util/utf8.h"

namespace anymesh {
namespace {

// Replaces the pieces by those that cut(piece, result) makes of each.
template <class Cut>
void cut_each(Pieces& pieces, const Cut& cut) {
  std::vector<std::string_view> views;
  views.reserve(pieces.views.size());
  for (const std::string_view piece : pieces.views) cut(piece, views);
  pieces.views = std::move(views);
}

// Replaces each piece by the text that rewrite(piece) returns, if any.
template <class Rewrite>
void rewrite_each(Pieces& pieces, const Rewrite& rewrite) {
  for (std::string_view& piece : pieces.views) {
    std::optional<std::string> text = rewrite(piece);
    if (!text) continue;
    const bool at_start = piece.data() == pieces.document;
    piece = pieces.owned.emplace_back(std::move(*text));
    if (at_start) pieces.document = piece.data();
  }
  size_t bytes = 0;
  for (const std::string_view piece : pieces.views) bytes += piece.size();
  check_growth(pieces.bytes, bytes);
}

// Splits each piece at what find(piece, spans) appends.
class Splitter : public PreTokenizer {
 public:
  Splitter(SplitBehavior behavior, bool invert) : behavior_(behavior), invert_(invert) {}

  void split(Pieces& pieces) const final {
    std::vector<Span> spans;
    cut_each(pieces, [&](std::string_view piece, std::vector<std::string_view>& views) {
      spans.clear();
      find(piece, spans);
      if (invert_)
        for (Span& span : spans) span.is_match = !span.is_match;
      apply_behavior(behavior_, spans);
      for (const Span& span : spans)
        if (span.end > span.begin) views.push_back(piece.substr(span.begin, span.end - span.begin));
    });
  }

 private:
  virtual void find(std::string_view piece, std::vector<Span>& spans) const = 0;

  SplitBehavior behavior_;
  bool invert_;
};

class PatternSplitter final : public Splitter {
 public:
  explicit PatternSplitter(const JsonNode& node)
      : Splitter(read_behavior(node.at("behavior")), node.at("invert").flag_or(false)),
        pattern_(node.at("pattern")) {}
  explicit PatternSplitter(RegularExpression expression)
      : Splitter(SplitBehavior::kRemoved, /*invert=*/true), pattern_(std::move(expression)) {}

 private:
  void find(std::string_view piece, std::vector<Span>& spans) const override {
    pattern_.find_all(piece, spans);
  }

  Pattern pattern_;
};

// Splits at each character of a class.
template <bool (*is_match)(char32_t)>
class ClassSplitter final : public Splitter {
 public:
  using Splitter::Splitter;

 private:
  void find(std::string_view piece, std::vector<Span>& spans) const override {
    size_t covered = 0;
    for (size_t at = 0; at < piece.size();) {
      const CodePoint c = decode_utf8(piece.substr(at));
      const size_t end = at + c.bytes;
      if (is_match(c.value)) {
        if (at > covered) spans.push_back({covered, at, false});
        spans.push_back({at, end, true});
        covered = end;
      }
      at = end;
    }
    if (covered < piece.size()) spans.push_back({covered, piece.size(), false});
  }
};

// Takes runs of word characters, and runs of what is neither a word character nor white space.
class WordSplitter final : public PreTokenizer {
 public:
  void split(Pieces& pieces) const override {
    const auto kind_of = [](char32_t c) { return is_word(c) ? 2 : is_white_space(c) ? 0 : 1; };
    cut_each(pieces, [&](std::string_view piece, std::vector<std::string_view>& views) {
      int before = 0;
      size_t begin = 0, at = 0;
      const auto end_run = [&] {
        if (before != 0) views.push_back(piece.substr(begin, at - begin));
        begin = at;
      };
      while (at < piece.size()) {
        const CodePoint c = decode_utf8(piece.substr(at));
        const int kind = kind_of(c.value);
        if (kind != before) end_run();
        before = kind;
        at += c.bytes;
      }
      end_run();
    });
  }
};

class Metaspace final : public PreTokenizer {
 public:
  explicit Metaspace(const JsonNode& node) : mark_(node.at("replacement").text()) {
    const JsonNode scheme = node.at("prepend_scheme");
    const std::string name = scheme.text_or("always");
    if (name != "always" && name != "first" && name != "never")
      scheme.expected("always, first or never");
    const bool prefix = node.at("add_prefix_space").flag_or(true);
    if (!prefix && !scheme.is_null() && name != "never")
      scheme.fail("is " + name + ", but add_prefix_space is false");
    always_ = prefix && name == "always";
    first_ = prefix && name == "first";
    split_ = node.at("split").flag_or(true);
    if (mark_.empty() || decode_utf8(mark_).bytes != mark_.size())
      node.at("replacement").expected("one character");
  }

  void split(Pieces& pieces) const override {
    rewrite_each(pieces, [&](std::string_view piece) -> std::optional<std::string> {
      std::string text;
      for (const char c : piece)
        if (c == ' ')
          text += mark_;
        else
          text += c;
      const bool prepend = always_ || (first_ && piece.data() == pieces.document);
      if (prepend && !text.starts_with(mark_)) text.insert(0, mark_);
      return text;
    });
    if (!split_) return;
    cut_each(pieces, [&](std::string_view piece, std::vector<std::string_view>& views) {
      for (size_t begin = 0; begin < piece.size();) {
        // Each of several marks in a row begins a piece.
        const size_t next = std::min(piece.find(mark_, begin + 1), piece.size());
        views.push_back(piece.substr(begin, next - begin));
        begin = next;
      }
    });
  }

 private:
  std::string mark_;
  bool always_, first_, split_;
};

class Gpt2Splitter final : public PreTokenizer {
 public:
  void split(Pieces& pieces) const override {
    cut_each(pieces, [](std::string_view piece, std::vector<std::string_view>& views) {
      while (!piece.empty()) {
        views.push_back(piece.substr(0, next_word(piece)));
        piece.remove_prefix(views.back().size());
      }
    });
  }
};

class PrefixSpace final : public PreTokenizer {
 public:
  void split(Pieces& pieces) const override {
    rewrite_each(pieces, [](std::string_view piece) -> std::optional<std::string> {
      if (piece.starts_with(' ')) return {};
      return " " + std::string(piece);
    });
  }
};

class ByteSpeller final : public PreTokenizer {
 public:
  void split(Pieces& pieces) const override {
    rewrite_each(pieces, [](std::string_view piece) { return std::optional(spell_bytes(piece)); });
  }
};

std::unique_ptr<PreTokenizer> read_step(const JsonNode& node) {
  using Behavior = SplitBehavior;
  const std::string& type = node.at("type").text();
  if (type == "Split") return std::make_unique<PatternSplitter>(node);
  if (type == "Metaspace") return std::make_unique<Metaspace>(node);
  if (type == "Whitespace") return std::make_unique<WordSplitter>();
  if (type == "WhitespaceSplit")
    return std::make_unique<ClassSplitter<is_white_space>>(Behavior::kRemoved, false);
  if (type == "Digits")
    return std::make_unique<ClassSplitter<is_numeric>>(
        node.at("individual_digits").flag_or(false) ? Behavior::kIsolated : Behavior::kContiguous,
        false);
  if (type == "Punctuation") {
    const JsonNode behavior = node.at("behavior");
    return std::make_unique<ClassSplitter<is_punctuation>>(
        behavior.is_null() ? Behavior::kIsolated : read_behavior(behavior), false);
  }
  node.at("type").refuse("is " + printable(type) + ", a pre-tokenizer that is not supported");
}

void read_steps(const JsonNode& node, std::optional<bool> prefix_space, PreTokenizers& all) {
  if (node.is_null()) return;
  const std::string& type = node.at("type").text();
  if (type == "Sequence") {
    for (const JsonNode& part : node.at("pretokenizers").list())
      read_steps(part, prefix_space, all);
    return;
  }
  if (all.bytes) all.steps.push_back(std::make_unique<ByteSpeller>());  // it was not the last
  all.bytes = type == "ByteLevel";
  if (!all.bytes) return all.steps.push_back(read_step(node));
  if (prefix_space.value_or(node.at("add_prefix_space").flag_or(true)))
    all.steps.push_back(std::make_unique<PrefixSpace>());
  if (node.at("use_regex").flag_or(true)) all.steps.push_back(std::make_unique<Gpt2Splitter>());
}

}  // namespace

PreTokenizers read_pre_tokenizers(const JsonNode& node, std::optional<bool> prefix_space) {
  PreTokenizers all;
  read_steps(node, prefix_space, all);
  return all;
}

std::unique_ptr<PreTokenizer> gpt2_pre_tokenizer() { return std::make_unique<Gpt2Splitter>(); }

std::unique_ptr<PreTokenizer> matches_pre_tokenizer(const std::string& expression) {
  return std::make_unique<PatternSplitter>(RegularExpression(expression));
}

}  // namespace anymesh
