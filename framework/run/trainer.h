#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <optional>
#include <vector>

#include "framework/config/config.h"
#include "framework/engine.h"
#include "framework/profile/kernels.h"
#include "framework/profile/profiler.h"
#include "framework/run/datasets.h"
#include "framework/run/pretrain.h"
#include "framework/run/run_log.h"
#include "framework/run/stop_request.h"

namespace anymesh {

// Checks, before the first step, that there is space for the run's saves. Adds lines to `report`.
void plan_saves(const CheckpointConfig& c, const BatchPlan& plan, Engine& engine,
                std::vector<std::string>& report);

// Reads the samples before each of the engine's steps, and logs, evaluates and saves after it. It
// uses samples and the engine, not GPT, and starts from the engine's state.
//
//   Trainer trainer(config, plan, program, model, engine, data, interruption, record);
//   if (!trainer.start()) return;
//   while (const auto batches = trainer.next_batch())
//     trainer.end_step(engine.train_batch(*batches), *batches);
//   trainer.finish();
//
// A step reads the next global_batch_size samples in their global order, whatever the mesh. An
// interrupted run saves and ends. Once resumed, it repeats the uninterrupted run bit for bit.
class Trainer {
 public:
  // The arguments must outlive the object.
  Trainer(const Config& config, const BatchPlan& plan, const TrainingProgram& program,
          const ModelDefinition& model, Engine& engine, const Datasets& data,
          StopRequest& interruption, RunRecord& record);

  // Compares the losses of --verify-resume. Returns false if the run should stop before a step.
  bool start();
  // Returns the micro-batches of the next step, or nullopt after the last one. The step's time
  // begins here.
  std::optional<std::vector<MicroBatch>> next_batch();
  void end_step(StepReport report, const std::vector<MicroBatch>& batches);
  // Commits the pending save, if there is one.
  void finish_save();
  // Saves and evaluates for the last time.
  void finish();

 private:
  bool due(int64_t interval) const { return interval > 0 && state_.iteration % interval == 0; }
  std::vector<MicroBatch> micro_batches_of(const SampleSource& data, int64_t first, int64_t count,
                                           std::optional<uint64_t> dropout_seed) const;
  std::vector<MicroBatch> read_train(int64_t first);
  void report_profile(const StepReport& report);
  Metrics metrics_of_step(const StepReport& report, const std::vector<MicroBatch>& batches);
  void evaluate(const char* when);
  bool for_each_valid(int64_t first_sample, int64_t samples, const BatchWork& work,
                      const std::function<bool()>& stop) const;
  std::optional<double> validation_loss(int64_t first_sample, int64_t samples,
                                        const std::function<bool()>& stop = {});
  void verify_resume();
  void try_saving(const std::function<void()>& work);
  void save();
  void saved();

  const Config& config_;
  const BatchPlan& plan_;
  const TrainingProgram& program_;
  const ModelDefinition& model_;
  Engine& engine_;
  const Datasets& data_;
  StopRequest& interruption_;
  const ProcessGrid& grid_;
  TrainState& state_;
  RunLog log_;
  int64_t saved_at_;  // the iteration of the newest committed checkpoint
  bool interrupted_ = false, exits_ = false;
  int64_t step_samples_ = 0;  // of the current step, over all ranks
  std::chrono::steady_clock::time_point step_start_;
  std::optional<Profiler> profiler_;       // during --profile-step
  std::optional<KernelRecorder> kernels_;  // on a GPU
  CommCounts last_step_;
  std::future<std::vector<MicroBatch>> ahead_;  // read for the next step, from this sample on
  int64_t ahead_first_ = 0;
};

}  // namespace anymesh
