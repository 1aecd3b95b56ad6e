// A run, as the engine and its checkpoints see it: configuration, model, optimizer and position.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "framework/comm/process_grid.h"
#include "framework/config/engine_config.h"
#include "framework/pipeline/stage.h"
#include "framework/zero/zero_optimizer.h"

namespace anymesh {

// The result of a validation right before a save. A resumed run can repeat it.
struct VerifiedLoss {
  double loss = 0;
  int64_t first_sample = 0, samples = 0;  // in the validation set
};

// The facts that decide the order of the samples. A run that goes on must have the same ones, or
// its count of samples would point elsewhere.
struct DataOrder {
  std::vector<std::pair<std::string, std::string>> facts;  // by flag: its value, or a digest
  // The samples prepared: first for as many as the first run asked for, then for what later ones
  // added (GptCorpora::part).
  std::vector<int64_t> train, valid;
};

// The training position. Everything else in a resumed run follows from flags.
struct TrainState {
  int64_t iteration = 0;
  int64_t consumed_train_samples = 0;
  int64_t consumed_valid_samples = 0;
  // The position in the LR schedule. It lags behind consumed_train_samples after
  // --no-load-lr-state, and by the samples of steps skipped for overflow.
  int64_t scheduled_samples = 0;
  uint64_t dropout_seed = 0;  // for dropout masks: --seed, or the loaded checkpoint's seed
  LossScaler scaler;          // settings from this run, scale and counters from the checkpoint
  int64_t skipped_steps = 0;  // skipped because of overflow
  std::optional<VerifiedLoss> verified;  // with --verify-resume
  std::optional<DataOrder> data;         // none for a program that does not record it
};

// The run, as the checkpoint functions see it. The objects referred to must outlive it.
struct CheckpointedRun {
  const ProcessGrid& grid;
  const StageModule& stage;
  ZeroOptimizer& optimizer;
  EngineConfig config;                 // a load may replace its schedule
  torch::Dtype dtype = torch::kFloat;  // of the weights
  bool base_loaded = false;            // all frozen parameters are those of a checkpoint
};

}  // namespace anymesh
