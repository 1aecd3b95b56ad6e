#pragma once

#include <memory>
#include <string>
#include <vector>

#include "framework/config/config.h"
#include "framework/data/dataset.h"
#include "framework/data/gpt_dataset.h"
#include "framework/run.h"

namespace anymesh {

// The run's data, from its flags: --data-path and --split, or --mock-data.
struct Datasets {
  SampleCounts counts;  // the samples that the run reads, from its first one on
  std::unique_ptr<Dataset> train;
  std::unique_ptr<Dataset> valid;  // null without --eval-iters, or without documents for it
  DataOrder order;
  std::vector<std::string> notes;  // lines to print
};

// Makes the data sets of a run that goes on from `state`, in the order that it began. Throws
// UserError if that order would be another and `config` does not accept it. Reading a sample throws
// if it has a token that is not below model.vocab_size.
Datasets make_datasets(const Config& config, const BatchPlan& plan, const TrainState& state,
                       const ModelFacts& model);

// The tokens' vocabulary.
struct Vocabulary {
  int size = 0;  // the tokenizer's, or more if --vocab-size says so
  int eod = -1;  // ends documents; -1 with --mock-data, which has none
};
Vocabulary vocabulary_of(const DataConfig& data);

}  // namespace anymesh
