#pragma once

#include <string>
#include <vector>

#include "framework/config/command_line.h"
#include "framework/config/parse.h"
#include "models/gpt/gpt_config.h"

namespace anymesh {

// pretrain_gpt's settings, and the whole table of flags over them.
struct GptCommandLine {
  GptCommandLine() {
    add_flags(flags, config);
    add_flags(flags, gpt);
  }
  GptCommandLine(const GptCommandLine&) = delete;
  GptCommandLine& operator=(const GptCommandLine&) = delete;

  ParseResult read(const std::vector<std::string>& args) { return parse(flags, config, args); }

  Config config;
  GptConfig gpt;
  FlagTable flags{"pretrain_gpt", "description"};
};

}  // namespace anymesh
