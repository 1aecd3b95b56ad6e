#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "framework/checkpoint/checkpoint.h"
#include "framework/checkpoint/save/save_lock.h"
#include "framework/config/config.h"
#include "framework/config/flags.h"

namespace anymesh {

// Facts about the model that a training program needs.
struct ModelFacts {
  int seq_length = 0;
  int64_t vocab_size = 0;          // the tokenizer's
  int64_t padded_vocab_size = 0;   // rows over all tp ranks
  std::vector<std::string> flags;  // a checkpoint must have been made with the same ones
};

// Converts a run's flags to its engine's configuration. REQUIRES: the flags are valid.
EngineConfig engine_config(const Config& config, const BatchPlan& plan, const ModelFacts& model,
                           const FlagTable& flags, std::shared_ptr<const SaveLock> saves);

}  // namespace anymesh
