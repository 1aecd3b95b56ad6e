#include "framework/engine.h"

#include <ATen/Functions.h>
#include <c10/util/StringUtil.h>

#include <cmath>
#include <utility>

#include "framework/comm/agreement.h"

namespace anymesh {

Engine::Engine(StageModule& stage, const ProcessGrid& grid, EngineConfig config)
    : stage_(stage),
      optimizer_(freeze_params(stage.params(), config.freeze, *grid.pp), grid, config.zero),
      pipeline_(stage, grid, config.pipeline_schedule == "zb-h1"),
      run_{grid, stage, optimizer_, std::move(config), stage.params()[0].tensor.scalar_type()},
      state_{.dropout_seed = run_.config.dropout_seed, .scaler = run_.config.scaler} {
  stage.runner().set_observer(&optimizer_);
  stage.runner().set_recompute(run_.config.activation_checkpointing);
}

StepReport Engine::train_batch(const std::vector<MicroBatch>& batches) {
  const ProcessGrid& grid = run_.grid;
  const bool by_sample = grid.same_bits.blocks > 0;
  const int64_t losses_here =
      static_cast<int64_t>(batches.size()) * (by_sample ? run_.config.micro_batch_size : 1);
  const double scale = 1.0 / static_cast<double>(losses_here * grid.topology.dp_size);
  const double loss_scale = state_.scaler.scale;
  const int64_t samples =
      run_.config.ramp.batch_size(state_.consumed_train_samples, run_.config.global_batch_size);
  optimizer_.begin_step(loss_scale, samples);
  const std::vector<torch::Tensor> losses = pipeline_.forward_backward(batches, scale * loss_scale);
  // Nothing waits for the losses before the work on gradients is under way.
  const double scaled_norm = optimizer_.reduce_gradients(), lr = learning_rate();
  const double local_loss = pipeline_.mean_of(losses), loss = mean_over_dp(losses, local_loss);
  check_finite(loss, grid.is_last_stage() ? local_loss : 0.0, "loss");

  const bool overflow = run_.dtype == torch::kHalf && !std::isfinite(scaled_norm);
  if (overflow) {
    skip_step();
  } else {
    check_finite(scaled_norm, optimizer_.local_square_sum(),
                 by_sample ? "gradient norm (with --same-bits, infinite if a sample's gradient is "
                             "2^11 / --global-batch-size or more)"
                           : "gradient norm");
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
  const std::vector<torch::Tensor> losses = pipeline_.forward_only(batches);
  return mean_over_dp(losses, pipeline_.mean_of(losses));
}

std::vector<torch::Tensor> Engine::predict(std::vector<MicroBatch> batches) {
  for (MicroBatch& batch : batches) {
    batch.labels = torch::Tensor();
    batch.dropout = DropoutContext();
  }
  return pipeline_.forward_only(batches);
}

std::filesystem::path Engine::save_checkpoint(const std::filesystem::path& save_dir,
                                              const SaveOptions& options) {
  finish_save();
  optimizer_.finish_gather();
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
                                               bool exclude_frozen_parameters) {
  optimizer_.finish_gather();
  return anymesh::save_16bit_model(save_dir, save_filename, run_, exclude_frozen_parameters);
}

SaveSize Engine::save_size(const std::filesystem::path& save_dir,
                           const SaveOptions& options) const {
  return anymesh::save_size(save_dir, run_, state_, options);
}

LoadResult Engine::load_checkpoint(const std::filesystem::path& load_dir,
                                   const LoadOptions& options) {
  finish_save();
  optimizer_.finish_gather();
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

// With --same-bits, adds the losses of all samples in their order.
double Engine::mean_over_dp(const std::vector<torch::Tensor>& losses, double loss) const {
  if (run_.grid.same_bits.blocks > 0) return pipeline_.mean_of(in_order(losses));
  torch::Tensor sum = torch::full({1}, loss, torch::kDouble);
  run_.grid.dp->all_reduce(sum);
  return sum.item<double>() / run_.grid.topology.dp_size;
}

// Returns the losses of all dp ranks' samples on the last stage: a step deals micro-batches to the
// ranks in turn.
std::vector<torch::Tensor> Engine::in_order(const std::vector<torch::Tensor>& losses) const {
  if (losses.empty()) return {};
  const torch::Tensor mine = at::stack(losses).to(torch::kDouble),  // [micro-batches x b]
      all = at::empty({run_.grid.topology.dp_size, mine.numel()}, mine.options());
  run_.grid.dp->all_gather(all, mine);
  return all.view({all.size(0), -1, run_.config.micro_batch_size})
      .transpose(0, 1)
      .flatten()
      .unbind();
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
