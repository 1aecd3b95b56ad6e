// Our side of data.py, in numbers, a line each:
//
//   gpt_data read PREFIX                          the tokens of every sequence
//   gpt_data write PREFIX TYPE                    from stdin, a document a line, of TokenType TYPE
//   gpt_data samples PART COUNT SPLIT SEQ_LENGTH SEED DATA_PATH...
//                                                 samples of part 0, 1 or 2, as training reads them
#include <iostream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "framework/data/gpt_corpora.h"
#include "framework/data/indexed_dataset.h"

namespace anymesh {
namespace {

void print(const std::vector<int64_t>& tokens) {
  for (size_t i = 0; i < tokens.size(); ++i) std::cout << (i > 0 ? " " : "") << tokens[i];
  std::cout << '\n';
}

void read(const std::string& prefix) {
  const IndexedDataset data(prefix);
  for (int64_t i = 0; i < data.size(); ++i) {
    std::vector<int64_t> tokens(data.length(i));
    data.read(i, 0, tokens);
    print(tokens);
  }
}

void write(const std::string& prefix, int type) {
  IndexedDatasetBuilder builder(prefix, static_cast<TokenType>(type));
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream in(line);
    builder.add_document(
        std::vector<int32_t>(std::istream_iterator<int32_t>(in), std::istream_iterator<int32_t>()));
  }
  builder.finish();
}

void samples(const std::vector<std::string>& args) {
  const GptCorpora corpora({args.begin() + 6, args.end()}, args.at(3), std::stoi(args.at(4)),
                           static_cast<uint32_t>(std::stoul(args.at(5))));
  const int64_t count = std::stoll(args.at(2));
  const auto data = corpora.part(std::stoul(args.at(1)), {count}, "data");
  std::vector<int64_t> tokens(data->seq_length() + 1);
  for (int64_t i = 0; i < count; ++i) {
    data->sample(i, tokens);
    print(tokens);
  }
}

}  // namespace
}  // namespace anymesh

int main(int argc, char** argv) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  try {
    if (args.at(0) == "read") anymesh::read(args.at(1));
    if (args.at(0) == "write") anymesh::write(args.at(1), std::stoi(args.at(2)));
    if (args.at(0) == "samples") anymesh::samples(args);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "gpt_data: " << error.what() << '\n';
    return 1;
  }
}
