#define PCRE2_CODE_UNIT_WIDTH 8
#include "framework/data/tokenizers/regular_expression.h"

#include <pcre2.h>

#include <algorithm>
#include <limits>

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

}  // namespace

struct RegularExpression::Compiled {
  explicit Compiled(pcre2_code* compiled)
      : code(compiled),
        data(pcre2_match_data_create(1, nullptr)),
        context(pcre2_match_context_create(nullptr)),
        stack(pcre2_jit_stack_create(32 << 10, kStackBytes, nullptr)) {
    pcre2_jit_stack_assign(context, nullptr, stack);
  }
  ~Compiled() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
    pcre2_code_free(code);
  }
  Compiled(const Compiled&) = delete;
  Compiled& operator=(const Compiled&) = delete;

  pcre2_code* code;
  pcre2_match_data* data;
  pcre2_match_context* context;
  pcre2_jit_stack* stack;
};

RegularExpression::RegularExpression(const std::string& pattern) : pattern_(pattern) {
  int error = 0;
  PCRE2_SIZE where = 0;
  pcre2_code* code = compile(pattern, error, where);
  if (code == nullptr)
    throw_error("the regular expression ", printable(pattern), " is none: ", pcre2_message(error),
                " at byte ", where);
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // without it, pcre2_match() interprets
  compiled_ = std::make_unique<Compiled>(code);
}

RegularExpression::~RegularExpression() = default;
RegularExpression::RegularExpression(RegularExpression&&) noexcept = default;

bool RegularExpression::is_valid(const std::string& pattern) {
  int error = 0;
  PCRE2_SIZE where = 0;
  pcre2_code* code = compile(pattern, error, where);
  const bool valid = code != nullptr;
  pcre2_code_free(code);
  return valid;
}

bool RegularExpression::find(std::string_view text, size_t from, Span& match) const {
  const int count =
      pcre2_match(compiled_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                  PCRE2_NO_UTF_CHECK, compiled_->data, compiled_->context);
  if (count == PCRE2_ERROR_NOMATCH) return false;
  if (count < 0)
    throw_error("the regular expression ", printable(pattern_), " takes too long on a text of ",
                text.size(), " bytes: ", pcre2_message(count));
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(compiled_->data);
  if (ends[0] < from || ends[1] < ends[0])
    throw_error("the regular expression ", printable(pattern_), " matches behind itself");
  match = {ends[0], ends[1], true};
  return true;
}

// An empty match right behind another match counts for nothing.
void RegularExpression::find_all(std::string_view text, std::vector<Span>& spans) const {
  const uint64_t steps = kSteps + kStepsPerByte * text.size();
  pcre2_set_match_limit(compiled_->context,
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

}  // namespace anymesh
