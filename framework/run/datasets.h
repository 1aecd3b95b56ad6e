#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "framework/config/config.h"
#include "framework/data/gpt_dataset.h"
#include "framework/run.h"
#include "framework/run/sample_source.h"

namespace anymesh {

// The data that a program brings, in place of --data-path and --mock-data.
struct OwnDatasets {
  std::string name;  // of the data set: checkpoints hold it and the facts
  // The facts that decide the samples and their order, such as a seed or a folder. A run that goes
  // on must have the same ones, or --allow-other-data.
  std::vector<std::pair<std::string, std::string>> facts = {};
  std::unique_ptr<SampleSource> train;
  std::unique_ptr<SampleSource> valid = nullptr;  // null: the run trains without validation
};
// Takes how many samples the run reads, from its first one on, however often it was resumed; the
// sources need to have so many.
using MakeOwnDatasets = std::function<OwnDatasets(const SampleCounts& counts)>;

// The run's data, from its flags (--data-path and --split, or --mock-data) or from its program.
struct Datasets {
  SampleCounts counts;  // the samples that the run reads, from its first one on
  std::unique_ptr<SampleSource> train;
  std::unique_ptr<SampleSource> valid;  // null without --eval-iters, or without samples for it
  DataOrder order;
  std::vector<std::string> notes;  // lines to print
};

// Makes the data sets of a run that goes on from `state`, in the order that it began: by `own`, if
// that is not null. Throws UserError if that order would be another and `config` does not accept
// it. Reading a sample of text throws if it has a token that is not below model.vocab_size.
Datasets make_datasets(const Config& config, const BatchPlan& plan, const TrainState& state,
                       const ModelFacts& model, const MakeOwnDatasets& own = nullptr);

// The tokens' vocabulary.
struct Vocabulary {
  int size = 0;  // the tokenizer's, or more if --vocab-size says so; 0 = the data are no tokens
  int eod = -1;  // ends documents; -1 with --mock-data, which has none
};
Vocabulary vocabulary_of(const DataConfig& data);

}  // namespace anymesh
