#include "framework/run/trainer.h"

#include <ATen/record_function.h>
#include <c10/util/StringUtil.h>

#include <chrono>
#include <cmath>
#include <functional>
#include <optional>
#include <set>

#include "framework/checkpoint/save/retention.h"
#include "framework/comm/agreement.h"
#include "framework/profile/report.h"
#include "framework/run/micro_batches.h"
#include "framework/run/run_log.h"
#include "framework/util/format.h"

namespace anymesh {
namespace {

// Returns "saved DIR/global_step50 in 812 ms (1.73 GB at 2.13 GB/s)" and the line of --report-save.
std::vector<std::string> lines_of(const SaveReport& save, const CheckpointConfig& checkpoint) {
  const SaveTimes& t = save.times;
  const double gb = static_cast<double>(save.bytes) / 1e9,
               seconds = checkpoint.async_save ? t.serialise + t.write + t.fsync : t.total;
  std::vector<std::string> lines{
      "saved " + save.path.string() +
      string_printf(" in %.0f ms (%.3g GB at %.3g GB/s)", t.total * 1e3, gb, gb / seconds)};
  if (checkpoint.async_save)
    lines[0] += string_printf(", of which training stood still for %.0f ms", t.stall * 1e3);
  if (checkpoint.report_save)
    lines.push_back(string_printf(
        "save times, ms, the greatest of all ranks: copy %.1f, gather %.1f, serialise "
        "%.1f, write %.1f, fsync %.1f, commit %.1f; stall %.1f, total %.1f",
        t.copy * 1e3, t.gather * 1e3, t.serialise * 1e3, t.write * 1e3, t.fsync * 1e3,
        t.commit * 1e3, t.stall * 1e3, t.total * 1e3));
  return lines;
}

struct Trainer {
  const Config& config;
  const BatchPlan& plan;
  Engine& engine;
  const Dataset& train_data;
  const Dataset* valid_data;
  StopRequest& interruption;

  const ProcessGrid& grid = engine.grid();
  TrainState& state = engine.state();
  RunLog log{grid.world->rank() == 0, config.run.loss_csv, config.run.tensorboard_dir,
             state.iteration};
  // The iteration of the newest committed checkpoint.
  int64_t saved_at = goes_on_in_place(config.checkpoint) ? state.iteration : -1;

  void train() {
    const CheckpointConfig& checkpoint = config.checkpoint;
    const auto due = [&](int64_t interval) {
      return interval > 0 && state.iteration % interval == 0;
    };
    if (checkpoint.verify_resume && !checkpoint.load.empty()) verify_resume();
    state.verified.reset();  // it belongs to the loaded state
    if (const int64_t step = config.run.profile_step; step > 0 && step <= state.iteration)
      throw CollectiveError(c10::str("--profile-step (", step, ") must be at least ",
                                     state.iteration + 1, ", the first step after the load"));
    if (const int64_t step = config.run.profile_step; step > plan.train_iters)
      throw CollectiveError(
          c10::str("--profile-step (", step, "): the run ends at step ", plan.train_iters));
    if (interruption.poll()) {
      log.line(interruption.reason() + ": stopping before the first step; nothing was written");
      return;
    }
    if (state.iteration >= plan.train_iters)
      log.line("nothing to train: the checkpoint is of iteration " +
               std::to_string(state.iteration) + ", the run ends at " +
               std::to_string(plan.train_iters) + " (--train-iters, --train-samples)");
    CommCounts last_step;
    bool stop = false;
    while (state.iteration < plan.train_iters && !stop) {
      if (grid.counts) grid.counts->reset();
      const StepReport report =
          state.iteration + 1 == config.run.profile_step ? profiled_step() : train_step();
      if (grid.counts) last_step = *grid.counts;
      log.step(report, plan.train_iters, due(config.run.log_interval));
      try_saving([this] {
        if (engine.poll_save()) saved();
      });
      if (due(config.run.log_interval)) log.saving(engine.save_progress(), /*print=*/true);
      if (due(config.run.eval_interval)) evaluate("at");
      stop = interruption.poll();
      if (stop)
        log.line(c10::str("stopping at iteration ", state.iteration, ": ", interruption.reason()));
      const bool asked = interruption.take_save_request();
      if (!checkpoint.save.empty() && (asked || due(checkpoint.save_interval))) {
        try_saving([this] { finish_save(); });
        try_saving([this] { save(); });
      }
      if (!stop && due(checkpoint.exit_interval)) {
        log.line(c10::str("exiting at iteration ", state.iteration, " (--exit-interval ",
                          config.checkpoint.exit_interval, ")"));
        break;
      }
    }
    // --save promises a checkpoint at the end, even for a run with nothing left to train.
    try_saving([this] { finish_save(); });
    if (!checkpoint.save.empty() && saved_at != state.iteration) save();
    finish_save();
    if (!stop && !due(config.run.eval_interval)) evaluate("at the end,");
    if (config.run.report_comm) log.line(table_of(last_step, *grid.world));
    log.summary(*grid.world, config.run.local_ranks > 1);
  }

  StepReport train_step() {
    const auto start = std::chrono::steady_clock::now();
    StepReport report;
    try {
      report = engine.train_batch(next_batch());
    } catch (const CollectiveError&) {  // thrown by the step; the pending save is good
      finish_save();
      throw;
    }
    const std::chrono::duration<double, std::milli> elapsed =
        std::chrono::steady_clock::now() - start;
    report.elapsed_ms = elapsed.count();
    report.tokens_per_s = static_cast<double>(plan.global_batch_size) * train_data.seq_length() /
                          (report.elapsed_ms / 1e3);
    if (report.skipped)
      log.line(c10::str("iteration ", report.iteration, ": overflow, step skipped (",
                        state.skipped_steps, " so far); loss scale ", report.loss_scale, " -> ",
                        state.scaler.scale));
    return report;
  }

  StepReport profiled_step() {
    grid.world->barrier();
    Profiler profiler;
    const StepReport report = train_step();
    const std::vector<Span> spans = profiler.stop();
    log.line(c10::str("profile of iteration ", report.iteration, "\n",
                      table_of(spans, report.elapsed_ms, *grid.world)));
    if (config.run.trace.empty()) return report;
    try {
      write_trace(config.run.trace, spans, *grid.world);
    } catch (const CollectiveError& error) {
      log.line(c10::str("WARNING: ", error.what(), ". Training continues without it"));
    }
    return report;
  }

  std::vector<MicroBatch> next_batch() const {
    RECORD_USER_SCOPE("data");
    return micro_batches(train_data, grid, config.batch.micro_batch_size,
                         state.consumed_train_samples, plan.num_microbatches, state.dropout_seed);
  }

  // Counts all samples as consumed even if the run is stopped meanwhile, so that a resumed run goes
  // on with the next ones.
  void evaluate(const char* when) {
    if (!valid_data) return;
    const int64_t samples = config.run.eval_iters * plan.global_batch_size;
    const auto loss =
        validation_loss(state.consumed_valid_samples, samples, [&] { return interruption.poll(); });
    state.consumed_valid_samples += samples;
    if (loss) log.validation(when, state.iteration, *loss);
  }

  // Returns the mean loss over `samples` samples of the validation set, or none once `stop` returns
  // true.
  std::optional<double> validation_loss(int64_t first_sample, int64_t samples,
                                        const std::function<bool()>& stop = {}) {
    const int64_t per_batch = int64_t{config.batch.micro_batch_size} * plan.dp,
                  batches = samples / per_batch;
    double sum = 0;
    for (int64_t done = 0; done < batches; done += plan.num_microbatches) {
      if (stop && stop()) return std::nullopt;
      const int64_t count = std::min<int64_t>(plan.num_microbatches, batches - done);
      sum += engine.eval_batch(micro_batches(*valid_data, grid, config.batch.micro_batch_size,
                                             first_sample + done * per_batch, count, {})) *
             static_cast<double>(count);
    }
    return sum / static_cast<double>(batches);
  }

  // Compares the loss with the one that the saving run took on the same samples right before its
  // save.
  void verify_resume() {
    constexpr double kSameModel = 1e-2;  // more than any change of mesh or precision causes
    if (!state.verified) {
      log.line(
          "verify-resume: nothing to compare with: saved without --verify-resume, or "
          "loaded with --finetune");
      return;
    }
    const auto [before, first_sample, samples, prepared] = *state.verified;
    if (const int64_t per_batch = int64_t{config.batch.micro_batch_size} * plan.dp;
        samples % per_batch != 0) {
      log.line(c10::str("verify-resume: not comparable: the ", samples,
                        " samples of the saved loss do not make whole batches of ", per_batch,
                        " (--micro-batch-size x data-parallel size)"));
      return;
    }
    if (prepared != 0 && prepared != valid_data->size()) {
      log.line(c10::str("verify-resume: not comparable: the validation set has ",
                        valid_data->size(), " samples, and had ", prepared,
                        " at the save, in another order (--train-iters, --eval-interval, "
                        "--eval-iters, --global-batch-size)"));
      return;
    }
    const double after = *validation_loss(first_sample, samples),
                 difference = std::abs(after - before) / before;
    const std::string text = string_printf(
        "verify-resume: validation loss before the save %.9g, after the load %.9g: "
        "relative difference %.1e",
        before, after, difference);
    log.line(text);
    if (!(difference <= kSameModel))
      throw CollectiveError(c10::str(text, ", expected at most ", kSameModel,
                                     ": the loaded model is not the saved one (or --data-path, "
                                     "--split or --seed differ). Nothing was written."));
  }

  // A failed save leaves the previous checkpoint as it is. The run goes on, because the next save
  // may preserve it.
  void try_saving(const std::function<void()>& work) {
    try {
      work();
    } catch (const CollectiveError& error) {
      if (config.checkpoint.exit_on_save_failure) throw;
      log.line(c10::str("WARNING: iteration ", state.iteration, ": THE SAVE FAILED: ", error.what(),
                        ". The checkpoint before it is as it was; training goes on, and the next "
                        "save tries again (--exit-on-save-failure would stop here)"));
    }
  }

  void save() {
    if (config.checkpoint.verify_resume) {
      const int64_t first = state.consumed_valid_samples,
                    samples = config.run.eval_iters * plan.global_batch_size;
      state.verified = {*validation_loss(first, samples), first, samples, valid_data->size()};
    }
    SaveOptions options = save_options(config.checkpoint);
    options.progress = [this](const Progress& done) { log.saving(done, /*print=*/false); };
    engine.save_checkpoint(config.checkpoint.save, options);
    if (!config.checkpoint.async_save) saved();
  }

  void finish_save() {
    if (engine.finish_save()) saved();
  }

  // Called after the commit.
  void saved() {
    const CheckpointConfig& checkpoint = config.checkpoint;
    saved_at = engine.last_save().iteration;
    for (const std::string& line : lines_of(engine.last_save(), checkpoint)) log.line(line);
    const int64_t limit = save_limit(checkpoint);
    if (limit == 0) return;
    std::vector<std::string> mine;
    all_or_none(*grid.world, [&] {
      if (engine.last_save().leads)
        mine = remove_old_checkpoints(checkpoint.save, limit, checkpoint.save_retain_interval);
    });
    const std::vector<std::string> lines = gather_lines(*grid.world, mine);
    for (const std::string& line : std::set<std::string>(lines.begin(), lines.end()))
      log.line(line);
  }
};

}  // namespace

SaveOptions save_options(const CheckpointConfig& checkpoint) {
  return {.exclude_frozen_parameters = checkpoint.exclude_frozen_parameters,
          .async = checkpoint.async_save,
          .weights_only = checkpoint.no_save_optim || checkpoint.save_weights_only,
          .save_16bit_model = checkpoint.save_16bit_model};
}

void train(const Config& config, const BatchPlan& plan, Engine& engine, const Dataset& train_data,
           const Dataset* valid_data, StopRequest& interruption) {
  Trainer{config, plan, engine, train_data, valid_data, interruption}.train();
}

}  // namespace anymesh
