#pragma once

#include <memory>

#include "framework/config/config.h"
#include "framework/data/dataset.h"
#include "framework/data/gpt_dataset.h"

namespace anymesh {

// The run's data, from its flags: --data-path and --split, or --mock-data.
struct Datasets {
  std::unique_ptr<Dataset> train;
  std::unique_ptr<Dataset> valid;  // null without --eval-iters
};

// Makes the data sets. Reading a sample throws if it has a token that is not below `vocab_size`.
Datasets make_datasets(const Config& config, const SampleCounts& counts, int seq_length,
                       int64_t vocab_size);

// Returns the number of entries in the tokens' vocabulary.
int vocabulary_size(const DataConfig& data);

}  // namespace anymesh
