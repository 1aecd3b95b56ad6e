#include "framework/trainer.h"

#include <c10/util/StringUtil.h>

#include <chrono>
#include <cmath>

#include "framework/comm/agreement.h"
#include "framework/data/batch_loader.h"

namespace anymesh {
namespace {

torch::Tensor to_tensor(const std::vector<int64_t>& values, int64_t rows) {
  return torch::tensor(values, torch::kLong).view({rows, -1});  // [b, s]
}

double milliseconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

}  // namespace

Trainer::Trainer(const Config& config, const BatchPlan& plan, CheckpointedRun& run,
                 StageModule& stage, const Dataset& train, const Dataset* valid, TrainState state)
    : config_(config),
      plan_(plan),
      run_(run),
      grid_(run.grid),
      engine_(stage, run.grid),
      train_(train),
      valid_(valid),
      state_(state),
      log_(run.grid.world->rank() == 0, config.run.loss_csv, state.iteration) {}

void Trainer::train() {
  const CheckpointConfig& checkpoint = config_.checkpoint;
  // --save promises a checkpoint at the end, also of a run with nothing left to train.
  int64_t saved_at = checkpoint.save == checkpoint.load ? state_.iteration : -1;
  const auto due = [&](int64_t interval) {
    return interval > 0 && state_.iteration % interval == 0;
  };
  if (checkpoint.verify_resume) {
    if (!valid_) throw CollectiveError("--verify-resume: --split leaves no validation documents");
    if (!checkpoint.load.empty()) verify_resume();
    state_.verified.reset();
  }
  CommCounts last_step;
  while (state_.iteration < plan_.train_iters) {
    if (grid_.counts) grid_.counts->reset();
    const StepReport report = train_step();
    if (grid_.counts) last_step = *grid_.counts;
    log_.step(report, plan_.train_iters, due(config_.run.log_interval));
    if (due(config_.run.eval_interval)) evaluate("at");
    if (!checkpoint.save.empty() && due(checkpoint.save_interval)) {
      save();
      saved_at = state_.iteration;
    }
    if (due(checkpoint.exit_interval)) {
      log_.line(c10::str("exiting at iteration ", state_.iteration, " (--exit-interval ",
                         config_.checkpoint.exit_interval, ")"));
      break;
    }
  }
  if (!checkpoint.save.empty() && saved_at != state_.iteration) save();
  if (!due(config_.run.eval_interval)) evaluate("at the end,");
  if (grid_.counts) log_.line(table_of(last_step, *grid_.world));
  log_.summary(*grid_.world);
}

StepReport Trainer::train_step() {
  const auto start = std::chrono::steady_clock::now();
  const auto batches = micro_batches(train_, state_.consumed_train_samples, plan_.num_microbatches,
                                     /*training=*/true);
  const double scale = 1.0 / (static_cast<double>(plan_.num_microbatches) * grid_.topology.dp_size);
  LossScaler& scaler = state_.scaler;
  const double loss_scale = scaler.scale;
  const double local_loss = engine_.forward_backward(batches, scale * loss_scale);
  const double loss = mean_over_dp(local_loss);
  check_finite(loss, grid_.is_last_stage() ? local_loss : 0.0, "loss");

  const double scaled_norm = run_.optimizer.reduce_gradients();
  const bool overflow = config_.precision.fp16 && !std::isfinite(scaled_norm);
  if (!overflow) check_finite(scaled_norm, run_.optimizer.local_square_sum(), "gradient norm");
  const double lr = run_.schedule.at(static_cast<double>(state_.scheduled_samples));
  if (overflow) {
    skip_step();
  } else {
    run_.optimizer.step(lr, scaled_norm, loss_scale);
    scaler.update(false);
    state_.scheduled_samples += plan_.global_batch_size;
  }

  ++state_.iteration;
  state_.consumed_train_samples += plan_.global_batch_size;
  const double elapsed_ms = milliseconds_since(start);
  return {.iteration = state_.iteration,
          .consumed_samples = state_.consumed_train_samples,
          .lm_loss = loss,
          .learning_rate = lr,
          .grad_norm = overflow ? INFINITY : scaled_norm / loss_scale,
          .loss_scale = loss_scale,
          .tokens_per_s = static_cast<double>(plan_.global_batch_size) * train_.seq_length() /
                          (elapsed_ms / 1e3),
          .elapsed_ms = elapsed_ms};
}

// An fp16 overflow, which every rank sees in the norm.
void Trainer::skip_step() {
  run_.optimizer.clear_gradients();
  ++state_.skipped_steps;
  const double before = state_.scaler.scale;
  const bool can_go_on = state_.scaler.update(true);
  if (!can_go_on && config_.run.check_for_nan)
    throw CollectiveError(c10::str(
        "iteration ", state_.iteration + 1, ": gradients overflow at the loss scale ", before,
        ", which cannot fall below --min-loss-scale ", state_.scaler.min_scale,
        ": the training diverges. --no-check-for-nan-in-loss-and-grad goes on regardless."));
  log_.line(c10::str("iteration ", state_.iteration + 1, ": overflow, step skipped (",
                     state_.skipped_steps, " so far); loss scale ", before, " -> ",
                     state_.scaler.scale));
}

void Trainer::evaluate(const char* when) {
  if (!valid_) return;
  const int64_t samples = config_.run.eval_iters * plan_.global_batch_size;
  const double loss = validation_loss(state_.consumed_valid_samples, samples);
  state_.consumed_valid_samples += samples;
  char text[160];
  std::snprintf(text, sizeof text, "validation loss %s iteration %lld: %.9g (perplexity %.6g)",
                when, static_cast<long long>(state_.iteration), loss, std::exp(loss));
  log_.line(text);
}

double Trainer::validation_loss(int64_t first_sample, int64_t samples) {
  const int64_t per_batch = int64_t{config_.batch.micro_batch_size} * plan_.dp,
                batches = samples / per_batch;
  double sum = 0;
  for (int64_t done = 0; done < batches; done += plan_.num_microbatches) {
    const int64_t count = std::min<int64_t>(plan_.num_microbatches, batches - done);
    sum += engine_.forward_only(micro_batches(*valid_, first_sample + done * per_batch, count,
                                              /*training=*/false)) *
           static_cast<double>(count);
  }
  return mean_over_dp(sum / static_cast<double>(batches));
}

// The loss of the same samples that the saving run took right before its save.
void Trainer::verify_resume() {
  constexpr double kSameModel = 1e-2;  // more than any change of mesh or precision does
  if (!state_.verified) {
    log_.line("verify-resume: nothing to compare with: saved without --verify-resume");
    return;
  }
  const auto [before, first_sample, samples] = *state_.verified;
  if (const int64_t per_batch = int64_t{config_.batch.micro_batch_size} * plan_.dp;
      samples % per_batch != 0) {
    log_.line(c10::str("verify-resume: not comparable: the ", samples,
                       " samples of the saved loss do not make whole batches of ", per_batch,
                       " (--micro-batch-size x data-parallel size)"));
    return;
  }
  const double after = validation_loss(first_sample, samples),
               difference = std::abs(after - before) / before;
  char text[200];
  std::snprintf(text, sizeof text,
                "verify-resume: validation loss before the save %.9g, after the load %.9g: "
                "relative difference %.1e",
                before, after, difference);
  log_.line(text);
  if (!(difference <= kSameModel))
    throw CollectiveError(c10::str(text, ", expected at most ", kSameModel,
                                   ": what was loaded is not what was saved (or --data-path, "
                                   "--split or --seed differ). Nothing was written."));
}

void Trainer::save() {
  if (config_.checkpoint.verify_resume) {
    const int64_t first = state_.consumed_valid_samples,
                  samples = config_.run.eval_iters * plan_.global_batch_size;
    state_.verified = {validation_loss(first, samples), first, samples};
  }
  const auto start = std::chrono::steady_clock::now();
  const std::filesystem::path folder = save_checkpoint(config_.checkpoint.save, run_, state_);
  log_.line(c10::str("saved ", folder.string(), " in ",
                     static_cast<int64_t>(milliseconds_since(start)), " ms"));
}

std::vector<MicroBatch> Trainer::micro_batches(const Dataset& data, int64_t consumed, int64_t count,
                                               bool training) const {
  const int64_t rows = config_.batch.micro_batch_size;
  const BatchSlice slice{
      .micro_batch_size = rows, .dp_size = grid_.topology.dp_size, .dp_rank = grid_.coord.dp};
  std::vector<MicroBatch> batches(static_cast<size_t>(count));
  for (int64_t m = 0; m < count; ++m) {
    MicroBatch& batch = batches[static_cast<size_t>(m)];
    batch.dropout.seed = state_.dropout_seed;
    for (int64_t row = 0; training && row < rows; ++row)
      batch.dropout.samples.push_back(slice.sample_index(consumed, m, row));
    if (!grid_.is_first_stage() && !grid_.is_last_stage()) continue;
    const TokenBatch read = load_micro_batch(data, slice, consumed, m);
    batch.tokens = to_tensor(read.tokens, rows);
    batch.labels = to_tensor(read.labels, rows);
  }
  return batches;
}

double Trainer::mean_over_dp(double loss) const {
  torch::Tensor sum = torch::full({1}, loss, torch::kDouble);
  grid_.dp->all_reduce(sum);
  return sum.item<double>() / grid_.topology.dp_size;
}

// `global` is the same on all ranks, so that they agree to look for the rank where it began.
void Trainer::check_finite(double global, double local, const char* what) const {
  if (std::isfinite(global) || !config_.run.check_for_nan) return;
  throw_together(*grid_.world,
                 std::isfinite(local)
                     ? ""
                     : c10::str(what, " is ", global, " at iteration ", state_.iteration + 1,
                                ", seen first here (stage ", grid_.coord.pp, ", dp rank ",
                                grid_.coord.dp, ", tp rank ", grid_.coord.tp,
                                "). This step changed no weight. "
                                "--no-check-for-nan-in-loss-and-grad goes on regardless."));
}

}  // namespace anymesh
