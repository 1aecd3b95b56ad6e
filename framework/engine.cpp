#include "framework/engine.h"

#include <c10/util/StringUtil.h>

#include <cmath>
#include <utility>

#include "framework/comm/agreement.h"

namespace anymesh {

Engine::Engine(StageModule& stage, const ProcessGrid& grid, EngineConfig config)
    : stage_(stage),
      optimizer_(freeze_params(stage.params(), config.freeze, *grid.pp), grid, config.zero),
      pipeline_(stage, grid),
      run_{grid, stage, optimizer_, std::move(config), stage.params()[0].tensor.scalar_type()},
      state_{.dropout_seed = run_.config.dropout_seed, .scaler = run_.config.scaler} {
  stage.runner().set_observer(&optimizer_);
  stage.runner().set_recompute(run_.config.activation_checkpointing);
}

StepReport Engine::train_batch(const std::vector<MicroBatch>& batches) {
  const ProcessGrid& grid = run_.grid;
  const double scale = 1.0 / (static_cast<double>(batches.size()) * grid.topology.dp_size);
  const double loss_scale = state_.scaler.scale;
  const std::vector<torch::Tensor> losses = pipeline_.forward_backward(batches, scale * loss_scale);
  const int64_t samples =
      run_.config.ramp.batch_size(state_.consumed_train_samples, run_.config.global_batch_size);
  // Nothing waits for the losses before the work on gradients is under way.
  const double scaled_norm = optimizer_.reduce_gradients(), lr = learning_rate();
  const double local_loss = pipeline_.mean_of(losses), loss = mean_over_dp(local_loss);
  check_finite(loss, grid.is_last_stage() ? local_loss : 0.0, "loss");

  const bool overflow = run_.dtype == torch::kHalf && !std::isfinite(scaled_norm);
  if (overflow) {
    skip_step();
  } else {
    check_finite(scaled_norm, optimizer_.local_square_sum(), "gradient norm");
    wait_for_snapshot();
    optimizer_.step(lr, scaled_norm, loss_scale);
    state_.scaler.update(false);
    state_.scheduled_samples += samples;
  }
  stage_.after_step(overflow);
  ++state_.iteration;
  state_.consumed_train_samples += samples;
  return {.iteration = state_.iteration,
          .consumed_samples = state_.consumed_train_samples,
          .lm_loss = loss,
          .learning_rate = lr,
          .grad_norm = overflow ? INFINITY : scaled_norm / loss_scale,
          .loss_scale = loss_scale,
          .skipped = overflow};
}

double Engine::eval_batch(const std::vector<MicroBatch>& batches) {
  return mean_over_dp(pipeline_.forward_only(batches));
}

std::filesystem::path Engine::save_checkpoint(const std::filesystem::path& save_dir,
                                              const SaveOptions& options) {
  finish_save();
  pending_ = std::make_unique<PendingSave>(save_dir, run_, state_, options, snapshot_);
  const std::filesystem::path path = pending_->path();
  if (!options.async) finish_save();
  return path;
}

bool Engine::poll_save() { return pending_ && pending_->written() && finish_save(); }

bool Engine::finish_save() {
  if (!pending_) return false;
  last_save_ = std::exchange(pending_, nullptr)->commit();
  return true;
}

void Engine::wait_for_snapshot() {
  if (pending_) pending_->wait_for_snapshot();
}

void Engine::reserve_snapshot() {
  finish_save();
  anymesh::reserve_snapshot(run_, state_, snapshot_);
}

Progress Engine::save_progress() const { return pending_ ? pending_->progress() : Progress(); }

std::filesystem::path Engine::save_16bit_model(const std::filesystem::path& save_dir,
                                               const std::string& save_filename,
                                               bool exclude_frozen_parameters) const {
  return anymesh::save_16bit_model(save_dir, save_filename, run_, exclude_frozen_parameters);
}

SaveSize Engine::save_size(const std::filesystem::path& save_dir,
                           const SaveOptions& options) const {
  return anymesh::save_size(save_dir, run_, state_, options);
}

LoadResult Engine::load_checkpoint(const std::filesystem::path& load_dir,
                                   const LoadOptions& options) {
  finish_save();
  return anymesh::load_checkpoint(load_dir, run_, options, state_);
}

double Engine::learning_rate() const {
  return run_.config.schedule.at(static_cast<double>(state_.scheduled_samples));
}

// Handles an fp16 overflow, which every rank sees in the norm.
void Engine::skip_step() {
  optimizer_.clear_gradients();
  ++state_.skipped_steps;
  const double before = state_.scaler.scale;
  const bool can_go_on = state_.scaler.update(true);
  if (!can_go_on && run_.config.check_for_nan)
    throw CollectiveError(c10::str(
        "iteration ", state_.iteration + 1, ": gradients overflow at the loss scale ", before,
        ", which cannot fall below --min-loss-scale ", state_.scaler.min_scale,
        ": the training diverges. --no-check-for-nan-in-loss-and-grad goes on regardless."));
}

double Engine::mean_over_dp(double loss) const {
  torch::Tensor sum = torch::full({1}, loss, torch::kDouble);
  run_.grid.dp->all_reduce(sum);
  return sum.item<double>() / run_.grid.topology.dp_size;
}

// `global` is the same on all ranks, so they agree to look for the rank where it began.
void Engine::check_finite(double global, double local, const char* what) const {
  if (std::isfinite(global) || !run_.config.check_for_nan) return;
  const Coord& at = run_.grid.coord;
  const std::string found = c10::str(what, " is ", global, " at iteration ", state_.iteration + 1);
  throw_together(*run_.grid.world,
                 std::isfinite(local)
                     ? ""
                     : c10::str(found, ", seen first here (stage ", at.pp, ", dp rank ", at.dp,
                                ", tp rank ", at.tp,
                                "). This step changed no weight. "
                                "--no-check-for-nan-in-loss-and-grad goes on regardless."));
  throw CollectiveError(found + ", though each rank's part of it is finite");
}

}  // namespace anymesh
