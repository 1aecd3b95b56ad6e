#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "framework/data/tokenizers/json_node.h"
#include "framework/data/tokenizers/regular_expression.h"

namespace anymesh {

// A {"String": "..."} or {"Regex": "..."} of tokenizer.json.
class Pattern {
 public:
  explicit Pattern(const JsonNode& node);
  explicit Pattern(RegularExpression expression) : expression_(std::move(expression)) {}

  // Appends spans that cover the text.
  void find_all(std::string_view text, std::vector<Span>& spans) const;
  // Replaces what a span matches by `content`. Throws a UserError if check_growth() does.
  static std::string replaced(std::string_view text, const std::vector<Span>& spans,
                              std::string_view content);

 private:
  std::string text_;
  std::optional<RegularExpression> expression_;
};

// Throws a UserError if a text becomes far longer than it was, as by rules that double it one after
// the other. Unicode's own forms make at most 18 bytes of one.
void check_growth(size_t bytes, size_t becomes);

// Compiles Oniguruma's regular expression. Errors name the node.
RegularExpression read_expression(const JsonNode& node);

// Decides on a match where a text is split: it goes, is a piece of its own, or joins one.
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };
SplitBehavior read_behavior(const JsonNode& node);

// Turns spans that cover a text into its pieces, some of which may be empty.
void apply_behavior(SplitBehavior behavior, std::vector<Span>& spans);

}  // namespace anymesh
