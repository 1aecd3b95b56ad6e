#pragma once

#include <string>
#include <vector>

#include "framework/comm/communicator.h"
#include "framework/config/config.h"
#include "framework/config/flags.h"
#include "framework/run/datasets.h"

namespace anymesh {

// A run takes these from the checkpoint that it starts from before there is a model: that in
// --load, or, if there is none yet, that of --pretrained-checkpoint.

// Sets the flags of the model, which stand behind the framework's in the table, and those of the
// tokenizer, as --use-checkpoint-args asks.
void take_checkpoint_args(FlagTable& flags, size_t first_of_model, const Config& config,
                          std::vector<std::string>& notes);

// Returns the tokenizer's vocabulary, with the checkpoint's size if that is larger, since
// model makers pad theirs. A checkpoint with more than kMostPadding extra entries has another
// tokenizer's vocabulary. Collective.
Vocabulary vocabulary_of_run(const Config& config, Communicator& world,
                             std::vector<std::string>& notes);

}  // namespace anymesh
