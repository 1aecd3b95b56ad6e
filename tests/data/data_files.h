// Helpers of the data tests: the fixtures, a scratch folder and small corpora.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "framework/data/dataset.h"
#include "framework/data/indexed_dataset.h"
#include "framework/util/input_file.h"
#include "tests/support/message_of.h"

namespace anymesh {

inline std::string data_fixture(const std::string& name) {
  return std::string(ANYMESH_TEST_DATA) + "/data/" + name;
}

inline void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

inline std::vector<int64_t> read_sample(const Dataset& data, int64_t index) {
  std::vector<int64_t> tokens(data.seq_length() + 1);
  data.sample(index, tokens);
  return tokens;
}

// A folder that lives as long as the test.
class ScratchFolder {
 public:
  ScratchFolder()
      : path_(std::filesystem::temp_directory_path() /
              ("anymesh_data_test_" + std::to_string(getpid()))) {
    std::filesystem::create_directories(path_);
  }
  ~ScratchFolder() { std::filesystem::remove_all(path_); }

  std::string operator/(const std::string& name) const { return path_ / name; }
  size_t files() const { return std::distance(std::filesystem::directory_iterator(path_), {}); }

 private:
  std::filesystem::path path_;
};

// Writes documents of the given lengths. Their tokens count up from 0 through the corpus.
inline void write_counting_corpus(const std::string& prefix, const std::vector<int>& lengths) {
  IndexedDatasetBuilder builder(prefix, TokenType::kInt32);
  int32_t next = 0;
  for (const int length : lengths) {
    std::vector<int32_t> tokens(length);
    for (int32_t& token : tokens) token = next++;
    builder.add_document(tokens);
  }
  builder.finish();
}

}  // namespace anymesh
