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

// Samples with tokens that are not below `vocab_size` are refused when they are read.
Datasets make_datasets(const Config& config, const SampleCounts& counts, int seq_length,
                       int64_t vocab_size);

// Entries of the vocabulary that the tokens are numbers of.
int vocabulary_size(const DataConfig& data);

}  // namespace anymesh
