// Tokenizes lines for hf_tokenizers.py: tokenize_lines TYPE MODEL LINES RESULT [PATTERN]
//
// LINES has a JSON text a line. RESULT gets a JSON list [ids, decoded text] for each. Prints the
// seconds that encoding took, around_text(), bos(), eod() and text_ends().
#include <chrono>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "framework/data/tokenizers/tokenizer.h"

int main(int argc, char** argv) {
  using Json = nlohmann::json;
  if (argc < 5) return 2;
  anymesh::TiktokenOptions tiktoken;
  if (argc > 5) tiktoken.pattern = argv[5];
  const auto tokenizer = anymesh::make_tokenizer(argv[1], "", "", argv[2], tiktoken);
  std::ifstream in(argv[3]);
  std::ofstream out(argv[4]);
  std::vector<std::string> texts;
  for (std::string line; std::getline(in, line);) texts.push_back(Json::parse(line));

  const auto start = std::chrono::steady_clock::now();
  std::vector<std::vector<int32_t>> ids;
  for (const std::string& text : texts) ids.push_back(tokenizer->encode(text));
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;

  for (const auto& each : ids)
    out << Json({each, tokenizer->decode(each)})
               .dump(-1, ' ', false, Json::error_handler_t::replace)
        << "\n";
  std::cout << Json({{"seconds", seconds.count()},
                     {"before", tokenizer->around_text().before},
                     {"behind", tokenizer->around_text().behind},
                     {"bos", tokenizer->bos()},
                     {"eod", tokenizer->eod()},
                     {"text_ends", tokenizer->text_ends()},
                     {"vocab_size", tokenizer->vocab_size()}})
            << "\n";
  return out.flush() ? 0 : 1;
}
