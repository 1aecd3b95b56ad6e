#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "framework/checkpoint/save/save.h"
#include "framework/pipeline/pipeline_engine.h"

namespace anymesh {

// The result of a step; these are the columns of --loss-csv.
struct StepReport {
  int64_t iteration = 0, consumed_samples = 0;
  double lm_loss = 0, learning_rate = 0, grad_norm = 0, loss_scale = 1;
  bool skipped = false;                     // an fp16 overflow: no weight changed
  double tokens_per_s = 0, elapsed_ms = 0;  // filled in by the caller that measures time
};

// One rank of a run: model, optimizer, schedule and checkpoints behind one object, like
// DeepSpeedEngine. examples/engine.cpp is a whole program.
//
//   Engine engine(model, grid, {.zero = {.stage = 2}, .schedule = {.max_lr = 1e-3}, ...});
//   LoadResult loaded = engine.load_checkpoint("checkpoints");       // of any mesh and ZeRO stage
//   while (engine.state().iteration < 1000) engine.train_batch(micro_batches);
//   engine.save_checkpoint("checkpoints", {.client_state = Value::dict({{"epoch", 3}})});
//
// Every method is collective over grid.world. Errors that all ranks know of are CollectiveErrors.
class Engine {
 public:
  // `stage` and `grid` must outlive the engine. Allocates the model's parameters and sets their
  // initial values.
  Engine(StageModule& stage, const ProcessGrid& grid, EngineConfig config);

  // Runs one optimizer step on this dp rank's micro-batches. Throws at the first loss or gradient
  // norm that is not finite, before it changes a weight. In fp16 a norm that is not finite only
  // skips the step (loss_scaler.h). With .zero.overlap_param_gather the next forward, save or load
  // completes the module's parameters.
  StepReport train_batch(const std::vector<MicroBatch>& batches);
  // Returns the mean loss over the micro-batches of all dp ranks.
  double eval_batch(const std::vector<MicroBatch>& batches);
  // Returns on the last stage what its forward() gives for each micro-batch of this dp rank without
  // labels: the logits (StageModule::forward). Other stages get nothing.
  std::vector<torch::Tensor> predict(std::vector<MicroBatch> batches);

  // Saves a checkpoint; checkpoint/checkpoint.h has the arguments, files and errors. With .async it
  // returns before the files are written. The tag appears when poll_save(), finish_save(), the next
  // save or a load commits it. It never appears if the engine is destroyed before that.
  std::filesystem::path save_checkpoint(const std::filesystem::path& save_dir,
                                        const SaveOptions& options = {});
  // Call poll_save() once a step: it commits the pending save if all ranks have written it.
  // finish_save() waits until they have. Both return whether they committed a save, and throw the
  // error if writing failed.
  bool poll_save();
  bool finish_save();
  // Until this returns, a save may still read parameters and optimizer state; train_batch() calls
  // it.
  void wait_for_snapshot();
  // Allocates the memory of asynchronous saves now, so that a shortage shows at once and the first
  // save is as fast as the others.
  void reserve_snapshot();
  const SaveReport& last_save() const { return last_save_; }  // the last one committed
  // The progress of the files that this rank writes in the pending save; zeros if there is none.
  Progress save_progress() const;
  std::filesystem::path save_16bit_model(const std::filesystem::path& save_dir,
                                         const std::string& save_filename = "pytorch_model.bin",
                                         bool exclude_frozen_parameters = false);
  SaveSize save_size(const std::filesystem::path& save_dir, const SaveOptions& options = {}) const;
  LoadResult load_checkpoint(const std::filesystem::path& load_dir,
                             const LoadOptions& options = {});

  const ProcessGrid& grid() const { return run_.grid; }
  const StageModule& module() const { return run_.stage; }
  const ZeroOptimizer& optimizer() const { return optimizer_; }
  TrainState& state() { return state_; }
  // Whether a load has set all frozen parameters.
  bool base_loaded() const { return run_.base_loaded; }
  // The schedule's current learning rate.
  double learning_rate() const;

 private:
  void skip_step();
  double mean_over_dp(const std::vector<torch::Tensor>& losses, double loss) const;
  std::vector<torch::Tensor> in_order(const std::vector<torch::Tensor>& losses) const;
  void check_finite(double global, double local, const char* what) const;

  StageModule& stage_;
  ZeroOptimizer optimizer_;
  PipelineEngine pipeline_;
  CheckpointedRun run_;
  TrainState state_;
  Snapshot snapshot_;
  std::unique_ptr<PendingSave> pending_;
  SaveReport last_save_;
};

}  // namespace anymesh
