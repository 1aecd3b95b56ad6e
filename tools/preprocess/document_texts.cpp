#include "tools/preprocess/document_texts.h"

#include "framework/data/inputs/byte_stream.h"
#include "framework/data/json_line.h"
#include "framework/util/errors.h"

namespace anymesh {
namespace {

// Sets `way` to that in which a line is bad if this throws.
std::vector<std::string> read(const DocumentTexts& how, const Document& document, bool* mended,
                              std::string& way) {
  way = "too long";
  if (document.too_long)
    throw_error("is a line of more than ", DocumentReader::kLongestLine,
                " bytes; cut it into documents, or give --on-bad-line skip");
  if (!how.json) return {document.text};
  way = "no string";
  const size_t begin = document.text.find_first_not_of(" \t");
  if (begin != std::string::npos && document.text[begin] == '[')
    throw_error(
        "begins a JSON array, expected one object a line; convert it first by: jq -c '.[]'");
  way = "no JSON";
  auto found = strings_of(document.text, how.keys, mended);
  way = "no string";
  std::vector<std::string> texts;
  for (size_t i = 0; i < found.size(); ++i) {
    if (!found[i]) throw_error("has no string \"", how.keys[i], "\" (--json-keys)");
    texts.push_back(std::move(*found[i]));
  }
  return texts;
}

}  // namespace

void count_bad_lines(const std::string& way, const std::pair<int64_t, std::string>& lines,
                     BadLines& all) {
  auto& [count, first] = all[way];
  if (count == 0) first = lines.second;
  count += lines.first;
}

std::string summary(const BadLines& all) {
  std::string text;
  for (const auto& [way, lines] : all)
    text += std::to_string(lines.first) + (lines.first == 1 ? " line " : " lines ") + way +
            "; the first: " + printable_message(lines.second) + "\n";
  return text;
}

std::string DocumentTexts::place(const Document& document) const {
  return input_name(inputs[document.input]) + ":" + std::to_string(document.line);
}

std::vector<std::string> DocumentTexts::of(const Document& document, BadLines& bad) const {
  bool mended = false;
  std::string way;
  try {
    auto texts = read(*this, document, on_bad_line == "replace" ? &mended : nullptr, way);
    if (mended)
      count_bad_lines("kept, with U+FFFD for what is no UTF-8", {1, place(document)}, bad);
    return texts;
  } catch (const UserError& error) {
    if (dynamic_cast<const NoUtf8*>(&error)) way = "no UTF-8";
    const std::string message = place(document) + ": " + error.what();
    const bool goes_on = way == "no JSON" && document.line == 1;  // perhaps an object over lines
    if (on_bad_line == "error") throw_error(message, goes_on ? "; expected one object a line" : "");
    count_bad_lines("skipped: " + way, {1, message}, bad);
    return {};
  }
}

}  // namespace anymesh
