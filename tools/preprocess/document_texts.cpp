#include "tools/preprocess/document_texts.h"

#include "framework/data/inputs/byte_stream.h"
#include "framework/data/json_line.h"
#include "framework/util/errors.h"

namespace anymesh {
namespace {

struct BadLine : UserError {
  BadLine(const char* kind, const std::string& text) : UserError(text), way(kind) {}
  const char* way;
};

std::vector<std::string> read(const DocumentTexts& how, const Document& document, bool* mended) {
  if (document.too_long)
    throw BadLine("too long", "is a line of more than " +
                                  std::to_string(DocumentReader::kLongestLine) +
                                  " bytes; cut it into documents, or give --on-bad-line skip");
  if (!how.json) return {document.text};
  const size_t begin = document.text.find_first_not_of(" \t");
  if (begin != std::string::npos && document.text[begin] == '[')
    throw BadLine("no string",
                  "begins a JSON array, expected one object a line; convert it first "
                  "by: jq -c '.[]'");
  auto found = strings_of(document.text, how.keys, mended);
  std::vector<std::string> texts;
  for (size_t i = 0; i < found.size(); ++i) {
    if (!found[i])
      throw BadLine("no string", "has no string \"" + how.keys[i] + "\" (--json-keys)");
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
  const auto skip = [&](const char* way, const UserError& error, const char* hint = "") {
    const std::string message = place(document) + ": " + error.what();
    if (on_bad_line == "error") throw_error(message, hint);
    count_bad_lines(std::string("skipped: ") + way, {1, message}, bad);
    return std::vector<std::string>();
  };
  bool mended = false;
  try {
    auto texts = read(*this, document, on_bad_line == "replace" ? &mended : nullptr);
    if (mended)
      count_bad_lines("kept, with U+FFFD for what is no UTF-8", {1, place(document)}, bad);
    return texts;
  } catch (const BadLine& error) {
    return skip(error.way, error);
  } catch (const NoUtf8& error) {
    return skip("no UTF-8", error);
  } catch (const UserError& error) {  // in the first line, perhaps an object that goes on
    return skip("no JSON", error, document.line == 1 ? "; expected one object a line" : "");
  }
}

}  // namespace anymesh
