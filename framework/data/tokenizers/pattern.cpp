#include "framework/data/tokenizers/pattern.h"

#include <algorithm>

#include "framework/data/tokenizers/oniguruma.h"

namespace anymesh {
namespace {

// Joins each match with its neighbour before it, or in `reverse` with the one behind it. Among
// matches in a row, only the one nearest to that neighbour is joined.
std::vector<Span> merge_matches(const std::vector<Span>& spans, bool reverse) {
  std::vector<Span> merged;
  bool after_match = false;
  for (size_t i = 0; i < spans.size(); ++i) {
    const Span& span = spans[reverse ? spans.size() - 1 - i : i];
    if (span.is_match && !after_match && !merged.empty())
      (reverse ? merged.back().begin : merged.back().end) = reverse ? span.begin : span.end;
    else
      merged.push_back(span);
    after_match = span.is_match;
  }
  if (reverse) std::reverse(merged.begin(), merged.end());
  return merged;
}

std::vector<Span> join_runs(const std::vector<Span>& spans) {
  std::vector<Span> joined;
  for (const Span& span : spans)
    if (!joined.empty() && joined.back().is_match == span.is_match)
      joined.back().end = span.end;
    else
      joined.push_back(span);
  return joined;
}

}  // namespace

RegularExpression read_expression(const JsonNode& node) {
  try {
    return RegularExpression(pcre2_from_oniguruma(node.text()));
  } catch (const UserError& error) {
    node.refuse(std::string("is refused: ") + error.what());
  }
}

Pattern::Pattern(const JsonNode& node) {
  if (const JsonNode regex = node.at("Regex"); !regex.is_null()) {
    expression_.emplace(read_expression(regex));
    return;
  }
  text_ = node.at("String").text();
  if (text_.empty()) node.at("String").refuse("is empty, which is not supported");
}

void check_growth(size_t bytes, size_t becomes) {
  constexpr size_t kMost = 18, kAnyway = 1 << 20;
  if (becomes > kAnyway && becomes > kMost * bytes)
    throw_error("the tokenizer's rules make ", becomes, " bytes or more of a text of ", bytes,
                ": expected at most ", kMost, " times as many");
}

std::string Pattern::replaced(std::string_view text, const std::vector<Span>& spans,
                              std::string_view content) {
  const auto matches = static_cast<size_t>(std::ranges::count_if(spans, &Span::is_match));
  check_growth(text.size(), matches * content.size());
  std::string result;
  for (const Span& span : spans)
    result += span.is_match ? content : text.substr(span.begin, span.end - span.begin);
  return result;
}

void Pattern::find_all(std::string_view text, std::vector<Span>& spans) const {
  if (expression_) return expression_->find_all(text, spans);
  size_t covered = 0;
  for (size_t at; (at = text.find(text_, covered)) != std::string_view::npos;) {
    if (at > covered) spans.push_back({covered, at, false});
    covered = at + text_.size();
    spans.push_back({at, covered, true});
  }
  if (covered < text.size()) spans.push_back({covered, text.size(), false});
}

SplitBehavior read_behavior(const JsonNode& node) {
  const std::string& name = node.text();
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  node.expected("Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
}

void apply_behavior(SplitBehavior behavior, std::vector<Span>& spans) {
  if (behavior == SplitBehavior::kRemoved)
    std::erase_if(spans, [](const Span& span) { return span.is_match; });
  if (behavior == SplitBehavior::kMergedWithPrevious) spans = merge_matches(spans, false);
  if (behavior == SplitBehavior::kMergedWithNext) spans = merge_matches(spans, true);
  if (behavior == SplitBehavior::kContiguous) spans = join_runs(spans);
}

}  // namespace anymesh
