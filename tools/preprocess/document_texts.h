// The texts of preprocess_data's documents, and what becomes of bad lines (--on-bad-line):
//
//   error     the first ends the program
//   skip      they are left out, and counted
//   replace   half a surrogate pair and bytes that are no UTF-8 become U+FFFD; others are skipped
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "framework/data/inputs/document_reader.h"

namespace anymesh {

// How many lines were bad in each way, and where the first was.
using BadLines = std::map<std::string, std::pair<int64_t, std::string>>;
void count_bad_lines(const std::string& way, const std::pair<int64_t, std::string>& lines,
                     BadLines& all);
// Returns "2 lines skipped: no JSON; the first: a.jsonl:7: ..." for each way, as lines.
std::string summary(const BadLines& all);

struct DocumentTexts {
  // Returns the text of each key. Returns none for a line that is skipped, and counts it in `bad`.
  // Throws UserError, with the place, for one that is an error.
  std::vector<std::string> of(const Document& document, BadLines& bad) const;
  // Returns "corpus.jsonl:7".
  std::string place(const Document& document) const;

  std::vector<std::string> inputs, keys;
  bool json = true;  // a document is a line of JSON; else it is the text itself
  std::string on_bad_line = "error";
};

}  // namespace anymesh
