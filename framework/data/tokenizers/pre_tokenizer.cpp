#include <algorithm>
#include <optional>
#include <utility>

#include "framework/data/tokenizers/characters.h"
#include "framework/data/tokenizers/pattern.h"
#include "framework/data/tokenizers/pipeline_tokenizer.h"
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

// Decides on a match where a text is split: it goes, is a piece of its own, or joins one. Turns
// spans that cover a text into its pieces, some of which may be empty.
using Behavior = void (*)(std::vector<Span>& spans);

void removed(std::vector<Span>& spans) {
  std::erase_if(spans, [](const Span& span) { return span.is_match; });
}

void isolated(std::vector<Span>&) {}

// Joins each match with its neighbour before it, or in `reverse` with the one behind it. Among
// matches in a row, only the one nearest to that neighbour is joined.
template <bool reverse>
void merged(std::vector<Span>& spans) {
  std::vector<Span> joined;
  bool after_match = false;
  for (size_t i = 0; i < spans.size(); ++i) {
    const Span& span = spans[reverse ? spans.size() - 1 - i : i];
    if (span.is_match && !after_match && !joined.empty())
      (reverse ? joined.back().begin : joined.back().end) = reverse ? span.begin : span.end;
    else
      joined.push_back(span);
    after_match = span.is_match;
  }
  if (reverse) std::reverse(joined.begin(), joined.end());
  spans = std::move(joined);
}

void contiguous(std::vector<Span>& spans) {
  std::vector<Span> joined;
  for (const Span& span : spans)
    if (!joined.empty() && joined.back().is_match == span.is_match)
      joined.back().end = span.end;
    else
      joined.push_back(span);
  spans = std::move(joined);
}

Behavior read_behavior(const JsonNode& node) {
  constexpr std::pair<std::string_view, Behavior> kBehaviors[] = {
      {"Removed", removed},
      {"Isolated", isolated},
      {"MergedWithPrevious", merged<false>},
      {"MergedWithNext", merged<true>},
      {"Contiguous", contiguous}};
  for (const auto& [name, behavior] : kBehaviors)
    if (node.text() == name) return behavior;
  node.expected("Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
}

// Splits each piece at what `find` finds, or with `invert` at the rest.
PreTokenizer splitter(FindSpans find, Behavior behavior, bool invert = false) {
  return [find = std::move(find), behavior, invert](Pieces& pieces) {
    std::vector<Span> spans;
    cut_each(pieces, [&](std::string_view piece, std::vector<std::string_view>& views) {
      spans.clear();
      find(piece, spans);
      if (invert)
        for (Span& span : spans) span.is_match = !span.is_match;
      behavior(spans);
      for (const Span& span : spans)
        if (span.end > span.begin) views.push_back(piece.substr(span.begin, span.end - span.begin));
    });
  };
}

// Finds each character of a class.
template <bool (*is_match)(char32_t)>
void find_characters(std::string_view piece, std::vector<Span>& spans) {
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

// Takes runs of word characters, and runs of what is neither a word character nor white space.
void split_words(Pieces& pieces) {
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

void split_at_marks(Pieces& pieces, const std::string& mark) {
  cut_each(pieces, [&](std::string_view piece, std::vector<std::string_view>& views) {
    for (size_t begin = 0; begin < piece.size();) {
      // Each of several marks in a row begins a piece.
      const size_t next = std::min(piece.find(mark, begin + 1), piece.size());
      views.push_back(piece.substr(begin, next - begin));
      begin = next;
    }
  });
}

PreTokenizer read_metaspace_splitter(const JsonNode& node) {
  const std::string mark = node.at("replacement").text();
  const JsonNode scheme = node.at("prepend_scheme");
  const std::string name = scheme.text_or("always");
  if (name != "always" && name != "first" && name != "never")
    scheme.expected("always, first or never");
  const bool prefix = node.at("add_prefix_space").flag_or(true);
  if (!prefix && !scheme.is_null() && name != "never")
    scheme.fail("is " + name + ", but add_prefix_space is false");
  const bool always = prefix && name == "always", first = prefix && name == "first",
             split = node.at("split").flag_or(true);
  if (mark.empty() || decode_utf8(mark).bytes != mark.size())
    node.at("replacement").expected("one character");
  return [mark, always, first, split](Pieces& pieces) {
    rewrite_each(pieces, [&](std::string_view piece) -> std::optional<std::string> {
      std::string text;
      for (const char c : piece)
        if (c == ' ')
          text += mark;
        else
          text += c;
      const bool prepend = always || (first && piece.data() == pieces.document);
      if (prepend && !text.starts_with(mark)) text.insert(0, mark);
      return text;
    });
    if (split) split_at_marks(pieces, mark);
  };
}

void add_prefix_space(Pieces& pieces) {
  rewrite_each(pieces, [](std::string_view piece) -> std::optional<std::string> {
    if (piece.starts_with(' ')) return {};
    return " " + std::string(piece);
  });
}

void spell_pieces(Pieces& pieces) {
  rewrite_each(pieces, [](std::string_view piece) { return std::optional(spell_bytes(piece)); });
}

PreTokenizer read_step(const JsonNode& node) {
  const std::string& type = node.at("type").text();
  if (type == "Split") {
    const Behavior behavior = read_behavior(node.at("behavior"));
    const bool invert = node.at("invert").flag_or(false);
    return splitter(read_pattern(node.at("pattern")), behavior, invert);
  }
  if (type == "Metaspace") return read_metaspace_splitter(node);
  if (type == "Whitespace") return split_words;
  if (type == "WhitespaceSplit") return splitter(find_characters<is_white_space>, removed);
  if (type == "Digits")
    return splitter(find_characters<is_numeric>,
                    node.at("individual_digits").flag_or(false) ? isolated : contiguous);
  if (type == "Punctuation") {
    const JsonNode behavior = node.at("behavior");
    return splitter(find_characters<is_punctuation>,
                    behavior.is_null() ? isolated : read_behavior(behavior));
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
  if (all.bytes) all.steps.emplace_back(spell_pieces);  // it was not the last
  all.bytes = type == "ByteLevel";
  if (!all.bytes) return all.steps.push_back(read_step(node));
  if (prefix_space.value_or(node.at("add_prefix_space").flag_or(true)))
    all.steps.emplace_back(add_prefix_space);
  if (node.at("use_regex").flag_or(true)) all.steps.emplace_back(split_gpt2_words);
}

}  // namespace

PreTokenizers read_pre_tokenizers(const JsonNode& node, std::optional<bool> prefix_space) {
  PreTokenizers all;
  read_steps(node, prefix_space, all);
  return all;
}

PreTokenizer take_matches(const std::string& expression) {
  return splitter(find_expression(expression), removed, /*invert=*/true);
}

}  // namespace anymesh
