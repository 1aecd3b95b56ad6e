// A program that trains is a TrainingProgram: its model, and the parts for which it brings
// something of its own. A part left out is pretrain_gpt's.
//
//   int main(int argc, char** argv) {
//     return anymesh::pretrain(argc, argv,
//                              {.name = "pretrain_vit",
//                               .description = "Trains a ViT.",
//                               .model = make_model<Vit>,
//                               .datasets = bars,           // else --data-path or --mock-data
//                               .schedule = rise_and_fall,  // else --lr-decay-style ...
//                               .metrics = {"accuracy"},
//                               .on_step = accuracy_of_step,
//                               .evaluate = accuracy});     // else the mean validation loss
//   }
//
// examples/vision is this program. Every rank calls the functions, also where ranks are threads
// (--local-ranks): they may change nothing that they share. They read flags of the program's own
// from the model definition, which declares them.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "framework/comm/process_grid.h"
#include "framework/config/config.h"
#include "framework/config/flags.h"
#include "framework/engine.h"
#include "framework/optim/optimizer.h"
#include "framework/pipeline/stage.h"
#include "framework/run/datasets.h"
#include "framework/run/metrics.h"

namespace anymesh {

// A model with its flags. models/gpt has the GPT's, and tutorials/16_new_model that of a minimal
// model. The methods are called in this order. Each rank has its own model definition.
class ModelDefinition {
 public:
  virtual ~ModelDefinition() = default;

  // Declares the model's flags, next to the framework's.
  virtual void add_flags(FlagTable& flags) = 0;

  // Called once all flags are read. Throws UserError if they break the rules of the framework,
  // validate(config, world_size), or of the model. Fills in the values that follow from other
  // flags, as checkpoints store them. `vocab_size` is the tokenizer's; with data of the program's
  // own, TrainingProgram::vocabulary.
  virtual ModelFacts settle(const Config& config, int vocab_size, int world_size) = 0;

  // Returns this rank's stage. `grid` outlives it.
  virtual std::unique_ptr<StageModule> make_stage(const Config& config, const ProcessGrid& grid,
                                                  torch::Dtype dtype) const = 0;
};
using MakeModel = std::function<std::unique_ptr<ModelDefinition>()>;
template <class Model>
std::unique_ptr<ModelDefinition> make_model() {
  return std::make_unique<Model>();
}

// Data of a program's own: tokens (TokenSource) or tensors of any kind (SampleSource). It must not
// communicate, and its `facts` must not depend on the counts. `model` is settled.
//
// The flags of --data-path, --mock-data and tokenizers do not exist then. Checkpoints hold the
// name, the facts and how many samples were read, and a run with others does not resume.
using MakeDatasets = std::function<OwnDatasets(const Config& config, const ModelDefinition& model,
                                               const SampleCounts& counts)>;

// A learning-rate schedule of a program's own. The rate of the step that begins when `samples` have
// been consumed is --lr times factor(samples). The name says the schedule with its constants
// ("triangle of 4000 samples"), because checkpoints hold it, and a run with another name does not
// resume. It must not be one of kLrDecayStyles.
//
// The flags of the built-in schedules do not exist then. `run_samples` is the length of the run
// (--train-samples, or --train-iters x --global-batch-size).
struct OwnSchedule {
  std::string name;
  std::function<double(double samples)> factor;
};
using MakeSchedule = std::function<OwnSchedule(const Config& config, const ModelDefinition& model,
                                               double run_samples)>;

// A step, as on_step sees it: its report, complete with its times, and this dp rank's
// micro-batches. The weights are those after the step.
struct StepView {
  const StepReport& report;
  const std::vector<MicroBatch>& batches;
  Engine& engine;
  const ModelDefinition& model;
};
using OnStep = std::function<Metrics(const StepView& step)>;

// A validation, as an evaluation of the program's own sees it.
using BatchWork = std::function<void(const std::vector<MicroBatch>& batches)>;
struct ValidationView {
  Engine& engine;
  const ModelDefinition& model;
  // Calls the work for this dp rank's micro-batches of --eval-iters x --global-batch-size samples
  // of the validation set, behind those of the last validation, a few at a time. Ends early if the
  // run is to stop; then no metric is logged.
  std::function<void(const BatchWork& work)> for_each;
  // Computes the mean loss of the same samples, and logs it as if the program had no evaluation of
  // its own.
  std::function<void()> mean_loss;
};
using Evaluate = std::function<Metrics(const ValidationView& validation)>;

struct TrainingProgram {
  std::string name;         // as messages begin
  std::string description;  // for --help
  MakeModel model;

  // An optimizer of the program's own (optim/optimizer.h), which each rank makes for itself. It is
  // the default of --optimizer, under its name.
  std::function<std::shared_ptr<Optimizer>()> optimizer = nullptr;

  MakeDatasets datasets = nullptr;
  Vocabulary vocabulary = {};  // of `datasets`, if they are of tokens; no flag sets it

  MakeSchedule schedule = nullptr;

  // Makes a universal checkpoint of what another framework has saved in a folder (FSDP2, say), in
  // that folder, with or without the optimizer's states. For --load FOLDER --universal-checkpoint
  // and --pretrained-checkpoint FOLDER; rank 0 calls it. Returns lines to print.
  std::function<std::vector<std::string>(const ModelDefinition&, const std::filesystem::path&,
                                         bool weights_only)>
      import = nullptr;

  // The names of the numbers that on_step returns. They are columns of --loss-csv, which a resumed
  // run continues only if it has the same ones, stand in the log's lines and in the record, and are
  // TensorBoard's tags.
  std::vector<std::string> metrics = {};
  // Called after each step, collectively: on all ranks, which may communicate by engine.grid() or
  // compute by engine.predict(). The last stage's metrics are logged, as the mean over its dp ranks
  // (metrics.h). Its time is not in the step's.
  OnStep on_step = nullptr;

  // Called at each validation in place of the mean loss, collectively like on_step. The metrics may
  // have any names: the log, the record and TensorBoard ("accuracy validation") have them.
  // --verify-resume compares mean losses nevertheless.
  Evaluate evaluate = nullptr;
};

// A program's main: flags -> mesh -> model -> optimizer -> data -> training loop. Returns the exit
// status. If it is not 0, one message has been printed. Throws std::logic_error if `program`
// contradicts itself.
int pretrain(int argc, char** argv, const TrainingProgram& program);

}  // namespace anymesh
