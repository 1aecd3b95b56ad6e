// Helpers of the tests in this folder: command lines of pretrain_gpt, and messages of refusals.
#pragma once

#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "framework/config/parse.h"
#include "models/gpt/gpt_config.h"
#include "tests/support/message_of.h"

namespace anymesh {

inline std::vector<std::string> words(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> list;
  for (std::string word; stream >> word;) list.push_back(word);
  return list;
}

// Returns what() of the UserError that `action` throws; "" if it throws nothing.
template <class Action>
std::string refusal(Action action) {
  try {
    action();
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

// pretrain_gpt's settings, and the whole table of flags over them.
struct GptCommandLine {
  GptCommandLine() {
    add_flags(flags, config);
    add_flags(flags, gpt);
  }
  GptCommandLine(const GptCommandLine&) = delete;
  GptCommandLine& operator=(const GptCommandLine&) = delete;

  // Reads `text` behind the flags that every run needs, where it does not say otherwise.
  ParseResult read(const std::string& text) { return read(words(text)); }
  ParseResult read(const std::vector<std::string>& more) {
    const auto has = [&](const char* flag) { return std::ranges::find(more, flag) != more.end(); };
    std::vector<std::string> args;
    if (!has("--mock-data")) args = {"--data-path", "corpus"};
    if (!has("--train-samples")) args.insert(args.end(), {"--train-iters", "20"});
    for (std::string& word : words("--lr 1e-3 --num-layers 4 --hidden-size 64 --seq-length 32 "
                                   "--num-attention-heads 4 --max-position-embeddings 32"))
      args.push_back(std::move(word));
    args.insert(args.end(), more.begin(), more.end());
    return parse(flags, config, args);
  }

  Config config;
  GptConfig gpt;
  FlagTable flags{"pretrain_gpt", "description"};
};

// Returns the refusal of a run on so many ranks; "" if it would start.
inline std::string refused(const std::string& args, int ranks = 1) {
  GptCommandLine line;
  return refusal([&] {
    line.read(args);
    validate(line.config, line.gpt, ranks);
  });
}

// Compares the answers to the commands of a list, "$ command", with the lines below them.
inline void expect_refusals(const std::string& list,
                            const std::function<std::string(const std::string&)>& answer_to) {
  std::ifstream file(ANYMESH_TEST_DATA "/../config/" + list);
  std::string line, command, expected;
  int commands = 0;
  const auto compare = [&] {
    if (command.empty()) return;
    std::string answer = answer_to(command);
    const size_t size = expected.size();
    if (expected.ends_with("...")) answer = answer.substr(0, size - 3) + "...";
    EXPECT_EQ(answer, expected) << command;
    expected.clear();
    ++commands;
  };
  while (std::getline(file, line)) {
    if (line.empty() || line.starts_with('#')) continue;
    if (!line.starts_with("$ ")) {
      expected = line;
      continue;
    }
    compare();
    command = line.substr(2);
  }
  compare();
  EXPECT_GT(commands, 50) << list;
}

}  // namespace anymesh
