#pragma once

#include <memory>

#include "framework/config/config.h"
#include "framework/data/dataset.h"

namespace anymesh {

// The run's data, from its flags: --data-path and --split, or --mock-data.
struct Datasets {
  std::unique_ptr<Dataset> train;
  std::unique_ptr<Dataset> valid;  // null without --eval-iters or without validation documents
};

Datasets make_datasets(const Config& config, const BatchPlan& plan, int seq_length);

// Entries of the vocabulary that the tokens are numbers of.
int vocabulary_size(const DataConfig& data);

}  // namespace anymesh
