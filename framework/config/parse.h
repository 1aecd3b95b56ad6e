// Reads the command line and a DeepSpeed JSON file into one Config.
//
//   pretrain_gpt --tensor-model-parallel-size 2 --num-layers=4 --data-path corpus_text_document
//                --bf16 --deepspeed_config ds_config.json ...
//
// Flags are spelled exactly as Megatron-DeepSpeed spells them. Flags and JSON fill the same fields;
// they may repeat but not contradict each other. Megatron flags that change no result here are
// accepted and answered with one note. Other problems are refused with a message: unknown flags
// (with the nearest known one), Megatron features that this version lacks, values that do not
// parse, and all that the rules of the table refuse (FlagTable::check).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "framework/config/config.h"
#include "framework/config/flags.h"

namespace anymesh {

struct ParseResult {
  std::string text;                // output of --help or --version: print it and exit 0; else empty
  std::vector<Setting> settings;   // every flag with its value, to print and for checkpoints
  std::vector<std::string> notes;  // remarks such as ignored flags, a line each, for rank 0
};

// The parts that a program brings itself. It does not take the flags of the framework's.
struct OwnParts {
  bool data = false;      // --data-path, --mock-data, the tokenizers' flags
  bool schedule = false;  // --lr-decay-style, --lr-warmup-iters ..., but --lr
};

// Declares the framework's flags, in groups, over the fields of `config`.
void add_flags(FlagTable& flags, Config& config, const OwnParts& own = {});

// `args` excludes the program's name. `more` sets further flags once these are read, as a
// checkpoint's args do. REQUIRES: add_flags(flags, config); models add theirs too.
ParseResult parse(FlagTable& flags, Config& config, const std::vector<std::string>& args,
                  const std::function<void()>& more = {});

}  // namespace anymesh
