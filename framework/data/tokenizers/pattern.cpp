#include "framework/data/tokenizers/pattern.h"

#include <algorithm>

namespace anymesh {
namespace {

FindSpans find_text(const std::string& wanted) {
  return [wanted](std::string_view text, std::vector<Span>& spans) {
    size_t covered = 0;
    for (size_t at; (at = text.find(wanted, covered)) != std::string_view::npos;) {
      if (at > covered) spans.push_back({covered, at, false});
      covered = at + wanted.size();
      spans.push_back({at, covered, true});
    }
    if (covered < text.size()) spans.push_back({covered, text.size(), false});
  };
}

}  // namespace

FindSpans read_pattern(const JsonNode& node) {
  const JsonNode regex = node.at("Regex"), text = node.at("String");
  if (regex.is_null()) {
    if (text.text().empty()) text.refuse("is empty, which is not supported");
    return find_text(text.text());
  }
  try {
    return find_expression(pcre2_from_oniguruma(regex.text()));
  } catch (const UserError& error) {
    regex.refuse(std::string("is refused: ") + error.what());
  }
}

void check_growth(size_t bytes, size_t becomes) {
  constexpr size_t kMost = 18, kAnyway = 1 << 20;
  if (becomes > kAnyway && becomes > kMost * bytes)
    throw_error("the tokenizer's rules make ", becomes, " bytes or more of a text of ", bytes,
                ": expected at most ", kMost, " times as many");
}

std::string replaced(std::string_view text, const std::vector<Span>& spans,
                     std::string_view content) {
  const auto matches = static_cast<size_t>(std::ranges::count_if(spans, &Span::is_match));
  check_growth(text.size(), matches * content.size());
  std::string result;
  for (const Span& span : spans)
    result += span.is_match ? content : text.substr(span.begin, span.end - span.begin);
  return result;
}

}  // namespace anymesh
