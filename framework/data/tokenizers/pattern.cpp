#include "framework/data/tokenizers/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <limits>
#include <memory>

#include "framework/util/errors.h"
#include "framework/util/printable.h"
#include "framework/util/utf8.h"

namespace anymesh {
namespace {

constexpr size_t kLongestPattern = 64 << 10;
constexpr uint64_t kSteps = 10'000'000, kStepsPerByte = 64;
constexpr size_t kStackBytes = 1 << 20;

std::string pcre2_message(int error) {
  PCRE2_UCHAR text[256];
  pcre2_get_error_message(error, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

// Returns null and the error's number and place if the pattern is none.
pcre2_code* compile(const std::string& pattern, int& error, PCRE2_SIZE& where) {
  pcre2_compile_context* context = pcre2_compile_context_create(nullptr);
  pcre2_set_newline(context, PCRE2_NEWLINE_LF);
  pcre2_set_max_pattern_length(context, kLongestPattern);
  pcre2_set_parens_nest_limit(context, 100);
  pcre2_code* code = pcre2_compile(
      reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &where, context);
  pcre2_compile_context_free(context);
  return code;
}

class RegularExpression {
 public:
  explicit RegularExpression(const std::string& pattern) : pattern_(pattern) {
    int error = 0;
    PCRE2_SIZE where = 0;
    code_.reset(compile(pattern, error, where));
    if (!code_)
      throw_error("the regular expression ", printable(pattern), " is none: ", pcre2_message(error),
                  " at byte ", where);
    pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE);  // without it, pcre2_match() interprets
    pcre2_jit_stack_assign(context_.get(), nullptr, stack_.get());
  }

  // An empty match right behind another match counts for nothing.
  void find_all(std::string_view text, std::vector<Span>& spans) const {
    const uint64_t steps = kSteps + kStepsPerByte * text.size();
    pcre2_set_match_limit(context_.get(),
                          static_cast<uint32_t>(std::min<uint64_t>(steps, UINT32_MAX)));
    size_t covered = 0, from = 0;
    bool after_match = false;
    Span match{};
    while (from <= text.size() && find(text, from, match)) {
      const bool empty = match.begin == match.end;
      if (!empty || !after_match || match.begin != covered) {
        if (match.begin > covered) spans.push_back({covered, match.begin, false});
        spans.push_back(match);
        covered = match.end;
        after_match = true;
      }
      from = match.end;
      if (empty) from += from < text.size() ? decode_utf8(text.substr(from)).bytes : 1;
    }
    if (covered < text.size()) spans.push_back({covered, text.size(), false});
  }

 private:
  bool find(std::string_view text, size_t from, Span& match) const {
    const int count =
        pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                    PCRE2_NO_UTF_CHECK, data_.get(), context_.get());
    if (count == PCRE2_ERROR_NOMATCH) return false;
    if (count < 0)
      throw_error("the regular expression ", printable(pattern_), " takes too long on a text of ",
                  text.size(), " bytes: ", pcre2_message(count));
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(data_.get());
    if (ends[0] < from || ends[1] < ends[0])
      throw_error("the regular expression ", printable(pattern_), " matches behind itself");
    match = {ends[0], ends[1], true};
    return true;
  }

  template <class T, void (*free)(T*)>
  struct Free {
    void operator()(T* object) const { free(object); }
  };
  template <class T, void (*free)(T*)>
  using Owned = std::unique_ptr<T, Free<T, free>>;

  std::string pattern_;
  Owned<pcre2_code, pcre2_code_free> code_;
  Owned<pcre2_match_data, pcre2_match_data_free> data_{pcre2_match_data_create(1, nullptr)};
  Owned<pcre2_match_context, pcre2_match_context_free> context_{
      pcre2_match_context_create(nullptr)};
  Owned<pcre2_jit_stack, pcre2_jit_stack_free> stack_{
      pcre2_jit_stack_create(32 << 10, kStackBytes, nullptr)};
};

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

FindSpans find_expression(const std::string& pattern) {
  return
      [expression = std::make_shared<const RegularExpression>(pattern)](
          std::string_view text, std::vector<Span>& spans) { expression->find_all(text, spans); };
}

bool is_expression(const std::string& pattern) {
  int error = 0;
  PCRE2_SIZE where = 0;
  pcre2_code* code = compile(pattern, error, where);
  pcre2_code_free(code);
  return code != nullptr;
}

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
