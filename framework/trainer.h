#pragma once

#include <memory>

#include "framework/checkpoint/checkpoint.h"
#include "framework/config/config.h"
#include "framework/data/dataset.h"
#include "framework/log.h"
#include "framework/pipeline/pipeline_engine.h"

namespace anymesh {

// The training loop: steps, evaluation, log, saves. It knows stages, samples and checkpoints, not
// GPT.
//
//   Trainer(config, plan, run, model, train_data, valid_data, state).train();
//
// A step reads the next global_batch_size samples in their global order, whatever the mesh. Stops
// with an error at the first loss or gradient that is not finite, before it touches a weight; in
// fp16 a gradient that is not finite only skips the step (loss_scaler.h).
class Trainer {
 public:
  // `valid` may be null: no evaluation. `state` says where to go on.
  Trainer(const Config& config, const BatchPlan& plan, CheckpointedRun& run, StageModule& stage,
          const Dataset& train, const Dataset* valid, TrainState state);

  void train();

 private:
  StepReport train_step();
  void skip_step();
  void evaluate(const char* when);
  void save();
  void verify_resume();

  // Mean loss of that many samples of the validation set.
  double validation_loss(int64_t first_sample, int64_t samples);

  std::vector<MicroBatch> micro_batches(const Dataset& data, int64_t consumed, int64_t count,
                                        bool training) const;
  double mean_over_dp(double loss) const;
  void check_finite(double global, double local, const char* what) const;

  const Config& config_;
  const BatchPlan& plan_;
  CheckpointedRun& run_;
  const ProcessGrid& grid_;
  PipelineEngine engine_;
  const Dataset& train_;
  const Dataset* valid_;
  TrainState state_;
  RunLog log_;
};

}  // namespace anymesh
