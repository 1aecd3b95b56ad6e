#pragma once

#include <string>

#include "framework/config/flags.h"
#include "framework/data/tokenizers/tokenizer.h"
#include "framework/format/whole.h"

namespace anymesh {

// Reads the flags and the tokenizer of a run from the `args` in its checkpoint, without a run.

// Returns the run's args in a checkpoint's metadata; None if it has none. The flag --num-layers is
// the attribute num_layers.
Value args_of(const Checkpoint& checkpoint);
// Throws a DamagedFile where args_of() returns None; `cure` ends the message.
Value run_args(const Checkpoint& checkpoint,
               const std::string& cure = "give a checkpoint of a run");

// A tokenizer as its flags describe it (framework/data/tokenizers/tokenizer.h).
struct TokenizerChoice {
  std::string type, vocab_file, merge_file, tokenizer_model;
  TiktokenOptions tiktoken;  // of the run
  bool searched = false;     // a file was found elsewhere than named
};

// Returns the checkpoint's tokenizer. Fields that are `given` stay as they are; the others come
//
//   from the args of its run     a file that is not where the run had it, since paths may be
//                                relative and checkpoints move, is looked for in the checkpoint's
//                                folder and those above it, then beside the checkpoint
//   from the files beside it     after hf_convert import, say: tokenizer.model, tokenizer.json, or
//                                vocab.json and merges.txt
//
// The type is empty if nothing gives it. A file that is not found stays as the run named it.
TokenizerChoice tokenizer_of(const Checkpoint& checkpoint, TokenizerChoice given = {});

// "--tokenizer-type T --vocab-file F ...", for the shell.
std::string flags_of(const TokenizerChoice& choice);

}  // namespace anymesh
