#include "framework/run/trainer.h"

#include <ATen/record_function.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "framework/checkpoint/save/retention.h"
#include "framework/comm/agreement.h"
#include "framework/profile/report.h"
#include "framework/run/micro_batches.h"
#include "framework/util/format.h"
#include "framework/util/stopwatch.h"

namespace anymesh {
namespace {

// Returns "saved DIR/global_step50 in 812 ms (1.73 GB at 2.13 GB/s)" and the line of --report-save.
std::vector<std::string> lines_of(const SaveReport& save, const CheckpointConfig& checkpoint) {
  const SaveTimes& t = save.times;
  const auto bytes = static_cast<double>(save.bytes);
  const double seconds = checkpoint.async_save ? t.serialise + t.write + t.fsync : t.total;
  std::vector<std::string> lines{"saved " + save.path.string() +
                                 string_printf(" in %.0f ms (%s at %s/s)", t.total * 1e3,
                                               size_text(bytes).c_str(),
                                               size_text(bytes / seconds).c_str())};
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

// Returns the options that the flags set for every save.
SaveOptions save_options(const CheckpointConfig& checkpoint) {
  return {.exclude_frozen_parameters = checkpoint.exclude_frozen_parameters,
          .async = checkpoint.async_save,
          .weights_only = checkpoint.no_save_optim || checkpoint.save_weights_only,
          .save_16bit_model = checkpoint.save_16bit_model};
}

}  // namespace

void plan_saves(const CheckpointConfig& c, const BatchPlan& plan, Engine& engine,
                std::vector<std::string>& report) {
  if (c.save.empty()) return;
  const int64_t done = engine.state().iteration, last = plan.train_iters;
  const auto multiples = [&](int64_t interval) {
    return interval > 0 ? std::max<int64_t>(0, last / interval - done / interval) : 0;
  };
  const int64_t interval = c.save_interval, retain = c.save_retain_interval,
                step = interval > 0 ? interval / std::gcd(interval, retain) : 0,  // unit: `retain`
      both = retain > 0 && step <= last / retain ? step * retain : 0;
  const bool one_more = c.save_interval == 0 || last % c.save_interval != 0,
             retains_it = one_more && retain > 0 && last % retain == 0;
  const SavePlan saves{.folder = c.save,
                       .saves = multiples(c.save_interval) + (one_more ? 1 : 0),
                       .limit = save_limit(c),
                       .retain_interval = retain,
                       .retained = multiples(both) + (retains_it ? 1 : 0)};
  SaveSize size;
  try {
    size = engine.save_size(c.save, save_options(c));
  } catch (const CollectiveError& error) {
    throw CollectiveError("--save " + c.save + ": " + error.what());
  }
  all_or_none(*engine.grid().world, [&] {
    for (std::string& line : preflight(size, saves)) report.push_back(std::move(line));
  });
}

Trainer::Trainer(const Config& config, const BatchPlan& plan, const TrainingProgram& program,
                 const ModelDefinition& model, Engine& engine, const Datasets& data,
                 StopRequest& interruption, RunRecord& record)
    : config_(config),
      plan_(plan),
      program_(program),
      model_(model),
      engine_(engine),
      data_(data),
      interruption_(interruption),
      grid_(engine.grid()),
      state_(engine.state()),
      log_(grid_.world->rank() == 0, config.run.loss_csv, config.run.tensorboard_dir,
           state_.iteration, program.metrics, record),
      saved_at_(goes_on_in_place(config.checkpoint) ? state_.iteration : -1) {}

bool Trainer::start() {
  if (config_.checkpoint.verify_resume && !config_.checkpoint.load.empty()) verify_resume();
  state_.verified.reset();  // it belongs to the loaded state
  if (const int64_t step = config_.run.profile_step; step > 0 && step <= state_.iteration)
    throw CollectiveError(c10::str("--profile-step (", step, ") must be at least ",
                                   state_.iteration + 1, ", the first step after the load"));
  if (const int64_t step = config_.run.profile_step; step > plan_.train_iters)
    throw CollectiveError(
        c10::str("--profile-step (", step, "): the run ends at step ", plan_.train_iters));
  if (interruption_.poll()) {
    log_.line(interruption_.reason() + ": stopping before the first step; nothing was written");
    return false;
  }
  if (state_.iteration >= plan_.train_iters)
    log_.line("nothing to train: the checkpoint is of iteration " +
              std::to_string(state_.iteration) + ", the run ends at " +
              std::to_string(plan_.train_iters) + " (--train-iters, --train-samples)");
  return true;
}

std::optional<std::vector<MicroBatch>> Trainer::next_batch() {
  if (interrupted_ || exits_ || state_.iteration >= plan_.train_iters) return std::nullopt;
  if (grid_.counts) grid_.counts->reset();
  if (state_.iteration + 1 == config_.run.profile_step) {
    grid_.world->barrier();
    profiler_.emplace();
    if (!grid_.device.is_cpu()) kernels_.emplace(grid_.device);
  }
  step_start_ = std::chrono::steady_clock::now();
  RECORD_USER_SCOPE("data");
  const int64_t size =
      plan_.ramp.batch_size(state_.consumed_train_samples, plan_.global_batch_size);
  if (size != step_samples_ && plan_.ramp.samples > 0)
    log_.line(c10::str("batches of ", size, " samples from iteration ", state_.iteration + 1));
  step_samples_ = size;
  std::vector<MicroBatch> batches = read_train(state_.consumed_train_samples);
  move_to(grid_.device, batches);
  return batches;
}

// Reads a step's batches. Beside a device, those of the step after are read meanwhile.
std::vector<MicroBatch> Trainer::read_train(int64_t first) {
  const auto size = [&](int64_t at) { return plan_.ramp.batch_size(at, plan_.global_batch_size); };
  const auto read = [this, size](int64_t at) {
    return read_micro_batches(*data_.train, grid_, config_.batch.micro_batch_size, at,
                              size(at) / plan_.samples_at_once, state_.dropout_seed,
                              config_.engine.model.all_stages_read_data);
  };
  const bool is_next = ahead_.valid() && ahead_first_ == first;
  std::vector<MicroBatch> batches = is_next ? ahead_.get() : read(first);
  ahead_ = {};
  if (!grid_.device.is_cpu() && state_.iteration + 1 < plan_.train_iters) {
    ahead_first_ = first + size(first);
    ahead_ = std::async(std::launch::async, read, ahead_first_);
  }
  return batches;
}

std::vector<MicroBatch> Trainer::micro_batches_of(const SampleSource& data, int64_t first,
                                                  int64_t count,
                                                  std::optional<uint64_t> dropout_seed) const {
  return micro_batches(data, grid_, config_.batch.micro_batch_size, first, count, dropout_seed,
                       config_.engine.model.all_stages_read_data);
}

void Trainer::end_step(StepReport report, const std::vector<MicroBatch>& batches) {
  report.elapsed_ms = seconds_since(step_start_) * 1e3;
  report.tokens_per_s = static_cast<double>(step_samples_) * config_.engine.model.seq_length /
                        (report.elapsed_ms / 1e3);
  if (report.skipped)
    log_.line(c10::str("iteration ", report.iteration, ": overflow, step skipped (",
                       state_.skipped_steps, " so far); loss scale ", report.loss_scale, " -> ",
                       state_.scaler.scale));
  if (profiler_) report_profile(report);
  if (grid_.counts) last_step_ = *grid_.counts;
  log_.step(report, metrics_of_step(report, batches), plan_.train_iters,
            due(config_.run.log_interval));
  if (due(config_.run.log_interval))
    for (const std::string& note : gather_lines(*grid_.pp, engine_.module().step_notes()))
      log_.line(note);
  try_saving([this] {
    if (engine_.poll_save()) saved();
  });
  if (due(config_.run.log_interval)) log_.saving(engine_.save_progress(), /*print=*/true);
  if (due(config_.run.eval_interval)) evaluate("at");
  interrupted_ = interruption_.poll();
  if (interrupted_)
    log_.line(c10::str("stopping at iteration ", state_.iteration, ": ", interruption_.reason()));
  const CheckpointConfig& checkpoint = config_.checkpoint;
  const bool asked = interruption_.take_save_request();
  if (!checkpoint.save.empty() && (asked || due(checkpoint.save_interval))) {
    try_saving([this] { finish_save(); });
    try_saving([this] { save(); });
  }
  exits_ = !interrupted_ && due(checkpoint.exit_interval);
  if (exits_)
    log_.line(c10::str("exiting at iteration ", state_.iteration, " (--exit-interval ",
                       checkpoint.exit_interval, ")"));
}

Metrics Trainer::metrics_of_step(const StepReport& report, const std::vector<MicroBatch>& batches) {
  if (!program_.on_step) return {};
  const std::string what = c10::str("on_step at iteration ", report.iteration);
  const Metrics mine = program_.on_step({report, batches, engine_, model_});
  return in_order(mean_of_metrics(grid_, mine, what), program_.metrics, what);
}

void Trainer::finish() {
  // --save promises a checkpoint at the end, even for a run with nothing left to train.
  try_saving([this] { finish_save(); });
  if (!config_.checkpoint.save.empty() && saved_at_ != state_.iteration) save();
  finish_save();
  if (!interrupted_ && !due(config_.run.eval_interval)) evaluate("at the end,");
  if (config_.run.report_comm) {
    const std::vector<TrafficRow> rows = traffic_rows(last_step_, *grid_.world);
    log_.line(table_of(rows));
    log_.record(state_.iteration, record_of(rows));
  }
  log_.summary(*grid_.world, config_.run.local_ranks > 1);
}

void Trainer::report_profile(const StepReport& report) {
  std::vector<Span> spans = profiler_->stop();
  profiler_.reset();
  if (kernels_) {
    const std::vector<Span> kernels = kernels_->stop();
    spans.insert(spans.end(), kernels.begin(), kernels.end());
    kernels_.reset();
  }
  const std::string table = table_of(spans, report.elapsed_ms, *grid_.reports);
  log_.line(c10::str("profile of iteration ", report.iteration, "\n", table));
  log_.record(report.iteration,
              {{"event", "profile"}, {"iteration", report.iteration}, {"table", table}});
  if (config_.run.trace.empty()) return;
  try {
    write_trace(config_.run.trace, spans, *grid_.reports);
  } catch (const CollectiveError& error) {
    log_.line(c10::str("WARNING: ", error.what(), ". Training continues without it"));
  }
}

// Counts all samples as consumed even if the run is stopped meanwhile, so that a resumed run goes
// on with the next ones.
void Trainer::evaluate(const char* when) {
  if (!data_.valid) return;
  const int64_t first = state_.consumed_valid_samples,
                samples = config_.run.eval_iters * plan_.global_batch_size;
  bool stopped = false;
  const auto stop = [&] { return stopped = stopped || interruption_.poll(); };
  const auto log_mean_loss = [&] {
    const auto loss = validation_loss(first, samples, stop);
    if (loss) log_.validation(when, state_.iteration, *loss);
  };
  if (program_.evaluate) {
    const auto for_each = [&](const BatchWork& work) {
      for_each_valid(first, samples, work, stop);
    };
    const Metrics mine = program_.evaluate({engine_, model_, for_each, log_mean_loss});
    if (!stopped) {
      const Metrics all = mean_of_metrics(
          grid_, mine, c10::str("evaluate ", when, " iteration ", state_.iteration));
      if (!all.empty()) log_.evaluation(when, state_.iteration, all);
    }
  } else {
    log_mean_loss();
  }
  state_.consumed_valid_samples += samples;
}

// Returns false once `stop` returns true.
bool Trainer::for_each_valid(int64_t first_sample, int64_t samples, const BatchWork& work,
                             const std::function<bool()>& stop) const {
  const int64_t per_batch = plan_.samples_at_once, batches = samples / per_batch;
  for (int64_t done = 0; done < batches; done += plan_.num_microbatches) {
    if (stop && stop()) return false;
    const int64_t count = std::min<int64_t>(plan_.num_microbatches, batches - done);
    work(micro_batches_of(*data_.valid, first_sample + done * per_batch, count, {}));
  }
  return true;
}

// Returns the mean loss over `samples` samples of the validation set, or none once `stop` returns
// true.
std::optional<double> Trainer::validation_loss(int64_t first_sample, int64_t samples,
                                               const std::function<bool()>& stop) {
  double sum = 0;
  const bool read_all = for_each_valid(
      first_sample, samples,
      [&](const std::vector<MicroBatch>& batches) {
        sum += engine_.eval_batch(batches) * static_cast<double>(batches.size());
      },
      stop);
  if (!read_all) return std::nullopt;
  return sum / static_cast<double>(samples / plan_.samples_at_once);
}

// Compares the loss with the one that the saving run took on the same samples right before its
// save.
void Trainer::verify_resume() {
  constexpr double kSameModel = 1e-2;  // more than any change of mesh or precision causes
  if (!state_.verified) {
    log_.line(
        "verify-resume: nothing to compare with: saved without --verify-resume, or "
        "loaded with --finetune or --allow-other-data");
    return;
  }
  const auto [before, first_sample, samples] = *state_.verified;
  if (const int64_t per_batch = plan_.samples_at_once; samples % per_batch != 0) {
    log_.line(c10::str("verify-resume: not comparable: the ", samples,
                       " samples of the saved loss do not make whole batches of ", per_batch,
                       " (--micro-batch-size x data-parallel size)"));
    return;
  }
  const double after = *validation_loss(first_sample, samples),
               difference = std::abs(after - before) / before;
  const std::string text = string_printf(
      "verify-resume: validation loss before the save %.9g, after the load %.9g: "
      "relative difference %.1e",
      before, after, difference);
  log_.line(text);
  if (!(difference <= kSameModel))
    throw CollectiveError(
        c10::str(text, ", expected at most ", kSameModel,
                 ": the loaded model is not the saved one. Nothing was written."));
}

// A failed save leaves the previous checkpoint as it is. The run goes on, because the next save
// may preserve it.
void Trainer::try_saving(const std::function<void()>& work) {
  try {
    work();
  } catch (const CollectiveError& error) {
    if (config_.checkpoint.exit_on_save_failure) throw;
    log_.line(c10::str("WARNING: iteration ", state_.iteration, ": THE SAVE FAILED: ", error.what(),
                       ". The checkpoint before it is as it was; training goes on, and the next "
                       "save tries again (--exit-on-save-failure would stop here)"));
  }
}

void Trainer::save() {
  if (config_.checkpoint.verify_resume) {
    const int64_t first = state_.consumed_valid_samples,
                  samples = config_.run.eval_iters * plan_.global_batch_size;
    state_.verified = {*validation_loss(first, samples), first, samples};
  }
  SaveOptions options = save_options(config_.checkpoint);
  options.progress = [this](const Progress& done) { log_.saving(done, /*print=*/false); };
  engine_.save_checkpoint(config_.checkpoint.save, options);
  if (!config_.checkpoint.async_save) saved();
}

void Trainer::finish_save() {
  if (engine_.finish_save()) saved();
}

// Called after the commit.
void Trainer::saved() {
  const CheckpointConfig& checkpoint = config_.checkpoint;
  saved_at_ = engine_.last_save().iteration;
  for (const std::string& line : lines_of(engine_.last_save(), checkpoint)) log_.line(line);
  log_.record(saved_at_, record_of(engine_.last_save()));
  const int64_t limit = save_limit(checkpoint);
  if (limit == 0) return;
  std::vector<std::string> mine;
  all_or_none(*grid_.world, [&] {
    if (engine_.last_save().leads)
      mine = remove_old_checkpoints(checkpoint.save, limit, checkpoint.save_retain_interval);
  });
  const std::vector<std::string> lines = gather_lines(*grid_.world, mine);
  for (const std::string& line : std::set<std::string>(lines.begin(), lines.end())) log_.line(line);
}

}  // namespace anymesh
