#pragma once

#include <string>

#include "framework/config/flags.h"
#include "framework/format/whole.h"
#include "models/gpt/gpt_config.h"

namespace anymesh {

// Reads the model and the tokenizer of a run from the `args` in its checkpoint, by the flag table
// and without a run.

// Returns the run's args in a checkpoint's metadata; None if it has none.
Value args_of(const CheckpointReader& checkpoint);

// Sets the flags that `args` has. Throws a DamagedFile that names a value that a flag cannot have.
void read_args(FlagTable& flags, const Value& args);

// Returns the `args` that a run of this model writes.
Value args_of_gpt(const GptConfig& gpt);

// Reads the `args` of a checkpoint of ours or of Megatron-DeepSpeed. Throws a DamagedFile that names
// a missing attribute, or a value that our model cannot have.
GptConfig gpt_of_args(const Value& args);

// Returns the flags that are not at their defaults: "--num-layers 2 --swiglu ...".
std::string flags_of_gpt(const GptConfig& gpt);

// A tokenizer as its flags describe it (framework/data/tokenizer.h).
struct TokenizerChoice {
  std::string type, vocab_file, merge_file, tokenizer_model;
  bool searched = false;  // a file was found elsewhere than named
};

// Returns the checkpoint's tokenizer. Fields that are `given` stay as they are; the others come
//
//   from the args of its run     a file that is not where the run had it, since paths may be
//                                relative and checkpoints move, is looked for in the checkpoint's
//                                folder and those above it, then beside the checkpoint
//   from the files beside it     after hf_convert import, say: tokenizer.model, or vocab.json and
//                                merges.txt
//
// The type is empty if nothing gives it. A file that is not found stays as the run named it.
TokenizerChoice tokenizer_of(const CheckpointReader& checkpoint, TokenizerChoice given = {});

// "--tokenizer-type T --vocab-file F ...", for the shell.
std::string flags_of(const TokenizerChoice& choice);

}  // namespace anymesh
