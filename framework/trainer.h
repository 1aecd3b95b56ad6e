#pragma once

#include <functional>
#include <optional>

#include "framework/config/config.h"
#include "framework/data/dataset.h"
#include "framework/engine.h"
#include "framework/interruption.h"
#include "framework/log.h"

namespace anymesh {

// What the flags say of every save.
SaveOptions save_options(const CheckpointConfig& checkpoint);

// The training loop: data, steps, evaluation, log, saves. It knows samples and the engine, not GPT.
//
//   Trainer(config, plan, engine, train_data, valid_data, interruption).train();
//
// A step reads the next global_batch_size samples in their global order, whatever the mesh. A run
// that is interrupted saves and returns; one that then resumes repeats the run that was not, bit
// for bit.
class Trainer {
 public:
  // `valid` may be null: no evaluation. Goes on where the engine's state is.
  Trainer(const Config& config, const BatchPlan& plan, Engine& engine, const Dataset& train,
          const Dataset* valid, Interruption& interruption);

  void train();

 private:
  StepReport train_step();
  StepReport profiled_step();
  std::vector<MicroBatch> next_batch() const;
  void evaluate(const char* when);
  void try_saving(const std::function<void()>& work);
  void save();
  void finish_save();
  void saved();  // after the commit
  void verify_resume();

  // Mean loss of that many samples of the validation set; none once `stop` says so.
  std::optional<double> validation_loss(int64_t first_sample, int64_t samples,
                                        const std::function<bool()>& stop = {});

  const Config& config_;
  const BatchPlan& plan_;
  Engine& engine_;
  const ProcessGrid& grid_;
  const Dataset& train_;
  const Dataset* valid_;
  TrainState& state_;  // the engine's
  Interruption& interruption_;
  RunLog log_;
  int64_t saved_at_;  // the iteration of the newest committed checkpoint
};

}  // namespace anymesh
