// Runs the program itself, as a user does.
#pragma once

#include <sys/wait.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "framework/data/indexed_dataset.h"
#include "framework/data/tokenizers/tokenizer.h"
#include "tests/data/data_files.h"

namespace anymesh {

class PreprocessData : public ::testing::Test {
 protected:
  // Returns the exit status. The program's output goes to `output`.
  int run(const std::string& arguments) {
    const std::string log = folder / "log";
    const std::string command =
        std::string(PREPROCESS_DATA) + " " + arguments + " > " + log + " 2>&1";
    const int status = std::system(command.c_str());
    output = read_file(log);
    std::filesystem::remove(log);
    return WEXITSTATUS(status);
  }

  std::string refusal(const std::string& arguments, int status = 1) {
    EXPECT_EQ(run(arguments), status) << arguments;
    return output;
  }
  // Returns the refusal of arguments that --help explains.
  std::string misuse(const std::string& arguments) { return refusal(arguments, 2); }

  // Returns the documents of a byte-level corpus as text.
  std::vector<std::string> documents(const std::string& prefix) {
    const auto tokenizer = make_tokenizer("ByteLevelTokenizer", "", "");
    const IndexedDataset data(prefix);
    std::vector<std::string> texts;
    for (int64_t i = 0; i < data.size(); ++i) {
      std::vector<int64_t> tokens(data.length(i));
      data.read(i, 0, tokens);
      texts.push_back(tokenizer->decode(std::vector<int32_t>(tokens.begin(), tokens.end())));
    }
    return texts;
  }

  // Returns the documents of a run with input(), which must succeed.
  std::vector<std::string> made(const std::string& arguments) {
    EXPECT_EQ(run(arguments), 0) << output;
    return documents(folder / "out_text_document");
  }

  std::string input(const std::string& name, const std::string& text) {
    write_file(folder / name, text);
    return "--tokenizer-type ByteLevelTokenizer --output-prefix " + (folder / "out") + " --input " +
           (folder / name) + " ";
  }

  const std::string megatron_flags =
      "--input " + data_fixture("text.jsonl") + " --tokenizer-type GPT2BPETokenizer --vocab-file " +
      data_fixture("vocab.json") + " --merge-file " + data_fixture("merges.txt") +
      " --append-eod --dataset-impl mmap ";
  ScratchFolder folder;
  std::string output;
};

}  // namespace anymesh
