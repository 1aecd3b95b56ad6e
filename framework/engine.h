#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "framework/checkpoint/pending_save.h"
#include "framework/pipeline/pipeline_engine.h"

namespace anymesh {

// What a step did; the columns of --loss-csv.
struct StepReport {
  int64_t iteration = 0, consumed_samples = 0;
  double lm_loss = 0, learning_rate = 0, grad_norm = 0, loss_scale = 1;
  bool skipped = false;                     // an fp16 overflow: no weight changed
  double tokens_per_s = 0, elapsed_ms = 0;  // filled by whoever takes the time
};

// One rank of a run: model, optimizer, schedule and checkpoints behind one object, as
// DeepSpeedEngine is. examples/engine.cpp is a whole program.
//
//   Engine engine(model, grid, {.zero = {.stage = 2}, .schedule = {.max_lr = 1e-3}, ...});
//   LoadResult loaded = engine.load_checkpoint("checkpoints");       // any mesh's, any stage's
//   while (engine.state().iteration < 1000) engine.train_batch(micro_batches);
//   engine.save_checkpoint("checkpoints", {.client_state = Value::dict({{"epoch", 3}})});
//
// Every method is collective over grid.world. Errors that all ranks know of are CollectiveErrors.
class Engine {
 public:
  // Both must live as long. Gives the model's parameters their memory and initial values.
  Engine(StageModule& stage, const ProcessGrid& grid, EngineConfig config);

  // One optimizer step on this dp rank's micro-batches. Stops at the first loss or gradient norm
  // that is not finite, before it touches a weight; in fp16 a norm that is not finite only skips
  // the step (loss_scaler.h).
  StepReport train_batch(const std::vector<MicroBatch>& batches);
  // Mean loss over the micro-batches of all dp ranks.
  double eval_batch(const std::vector<MicroBatch>& batches);

  // checkpoint/checkpoint.h has the arguments, files and errors. With .async it returns before the
  // files are written: the tag appears when poll_save(), finish_save(), the next save or a load
  // commits it, and not at all if the engine goes before.
  std::filesystem::path save_checkpoint(const std::filesystem::path& save_dir,
                                        const SaveOptions& options = {});
  // Once a step: commits the save that is under way if all ranks have written it. finish_save()
  // waits until they have. Both say whether they committed one, and throw what went wrong in
  // writing it.
  bool poll_save();
  bool finish_save();
  // Until it returns, parameters and optimizer state may still be read by a save; train_batch()
  // calls it.
  void wait_for_snapshot();
  // Takes the memory of asynchronous saves now, so that a lack of it shows at once, and the first
  // of them is as fast as the others.
  void reserve_snapshot();
  const SaveReport& last_save() const { return last_save_; }  // of those that are committed
  // Of the files that this rank writes of the save under way; zeros if there is none.
  Progress save_progress() const;
  std::filesystem::path save_16bit_model(const std::filesystem::path& save_dir,
                                         const std::string& save_filename = "pytorch_model.bin",
                                         bool exclude_frozen_parameters = false) const;
  SaveSize save_size(const std::filesystem::path& save_dir, const SaveOptions& options = {}) const;
  LoadResult load_checkpoint(const std::filesystem::path& load_dir,
                             const LoadOptions& options = {});

  const ProcessGrid& grid() const { return run_.grid; }
  const StageModule& module() const { return run_.stage; }
  const ZeroOptimizer& optimizer() const { return optimizer_; }
  TrainState& state() { return state_; }
  // The schedule's at this point.
  double learning_rate() const;

 private:
  void skip_step();
  double mean_over_dp(double loss) const;
  void check_finite(double global, double local, const char* what) const;

  ZeroOptimizer optimizer_;
  PipelineEngine pipeline_;
  CheckpointedRun run_;
  TrainState state_;
  Snapshot snapshot_;
  std::unique_ptr<PendingSave> pending_;
  SaveReport last_save_;
};

}  // namespace anymesh
