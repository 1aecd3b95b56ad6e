#pragma once

#include <string>

#include "framework/checkpoint/format/whole_checkpoint.h"

namespace anymesh {

// A tokenizer as its flags say it (framework/data/tokenizer.h).
struct TokenizerChoice {
  std::string type, vocab_file, merge_file, tokenizer_model;
  bool searched = false;  // a file is from where nobody named it
};

// Which tokenizer a checkpoint is of, apart from what is `given`:
//
//   by the args of its run       a file that is not where the run had it, since paths may be
//                                relative and checkpoints move, is looked for from the folders above
//                                the checkpoint on, then beside it
//   by what lies beside it       after hf_convert import, say: tokenizer.model, or vocab.json and
//                                merges.txt
//
// The type is empty if nothing says it. A file that is nowhere stays as the run named it.
TokenizerChoice tokenizer_of(const WholeCheckpoint& checkpoint, TokenizerChoice given = {});

// "--tokenizer-type T --vocab-file F ...", for the shell.
std::string flags_of(const TokenizerChoice& choice);

// The run's args in a checkpoint's metadata; None where it has none.
Value args_of(const WholeCheckpoint& checkpoint);

}  // namespace anymesh
