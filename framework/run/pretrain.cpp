#include "framework/run/pretrain.h"

#include <ATen/Parallel.h>
#include <c10/util/StringUtil.h>
#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>

#include "framework/checkpoint/load/find_loadable_tags.h"
#include "framework/checkpoint/save/retention.h"
#include "framework/checkpoint/save/save_lock.h"
#include "framework/comm/agreement.h"
#include "framework/comm/mpi_job.h"
#include "framework/comm/thread_job.h"
#include "framework/config/parse.h"
#include "framework/profile/report.h"
#include "framework/run/datasets.h"
#include "framework/run/device.h"
#include "framework/run/launch.h"
#include "framework/run/run_log.h"
#include "framework/run/trainer.h"
#include "framework/util/printable.h"
#include "framework/util/process_limits.h"
#include "framework/util/standard_output.h"
#include "framework/zero/memory.h"
#include "framework/zero/memory_report.h"

namespace anymesh {
namespace {

// Sets this rank's number of threads: OMP_NUM_THREADS if set, else its share of the cores that it
// may run on. The machine's ranks that may run on the same cores share them.
void set_threads(Communicator& local) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  const bool known = sched_getaffinity(0, sizeof cores, &cores) == 0;
  const std::string mine(reinterpret_cast<const char*>(&cores), sizeof cores);
  const auto all = gather_strings(local, mine);
  if (!known || std::getenv("OMP_NUM_THREADS")) return;
  const auto sharing = static_cast<int>(std::count(all.begin(), all.end(), mine));
  at::set_num_threads(std::max(1, CPU_COUNT(&cores) / sharing));
}

torch::Dtype weights_dtype(const PrecisionConfig& precision) {
  return precision.bf16 ? torch::kBFloat16 : precision.fp16 ? torch::kHalf : torch::kFloat;
}

LoadOptions::Schedule schedule_choice(const CheckpointConfig& checkpoint) {
  using enum LoadOptions::Schedule;
  if (checkpoint.override_scheduler) return ThisRuns;
  return checkpoint.use_checkpoint_scheduler ? Checkpoints : MustAgree;
}

// Returns lines to print. A first run may load from the folder that it will save to, so that the
// same command can restart it.
std::vector<std::string> load(const CheckpointConfig& c, Engine& engine) {
  const LoadResult loaded =
      engine.load_checkpoint(c.load, {.tag = c.load_tag,
                                      .load_module_strict = !c.no_load_strict,
                                      .load_optimizer_states = !c.no_load_optim,
                                      .load_lr_scheduler_states = !c.no_load_lr_state,
                                      .load_module_only = c.finetune,
                                      .universal = c.universal_checkpoint,
                                      .fallback = !c.no_fallback,
                                      .verify = c.verify_checkpoint,
                                      .load_rng = !c.no_load_rng,
                                      .schedule = schedule_choice(c)});
  if (!loaded.path && (!goes_on_in_place(c) || c.exit_on_missing_checkpoint))
    throw CollectiveError(loaded.report.back());
  return loaded.report;
}

// Recomputes the number of steps from the rest of --train-samples, because earlier steps may have
// had other batch sizes.
BatchPlan rest_of(BatchPlan plan, const BatchConfig& batch, const TrainState& state) {
  if (batch.train_samples != 0) {
    plan.train_iters =
        state.iteration + std::max<int64_t>(0, batch.train_samples - state.consumed_train_samples) /
                              plan.global_batch_size;
  }
  return plan;
}

// Returns the samples counted from the first one on, whatever batches and intervals have read them
// so far.
SampleCounts samples_to_read(const Config& config, const BatchPlan& plan, const TrainState& state) {
  SampleCounts counts = sample_counts(state.iteration, plan.train_iters, plan.global_batch_size,
                                      config.run.eval_interval, config.run.eval_iters);
  // With --train-samples, takes the number that Megatron prepares; a corpus's order depends on it.
  counts.train = config.batch.train_samples != 0 ? config.batch.train_samples
                                                 : counts.train + state.consumed_train_samples;
  if (config.run.eval_iters > 0) counts.valid += state.consumed_valid_samples;
  return counts;
}

// Checks, before the first step, that there is space for the run's saves. Returns lines to print.
std::vector<std::string> plan_saves(const CheckpointConfig& c, const BatchPlan& plan,
                                    Engine& engine) {
  if (c.save.empty()) return {};
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
  std::vector<std::string> lines;
  all_or_none(*engine.grid().world, [&] { lines = preflight(size, saves); });
  return lines;
}

// Returns the lines on model, memory and data, which are printed below the mesh. Collective.
std::vector<std::string> describe(const SampleCounts& samples, const ModelFacts& facts,
                                  const Datasets& data, const Engine& engine) {
  int64_t here = 0, once = 0;
  for (const ParamSpec& spec : engine.module().params()) {
    here += spec.tensor.numel();
    if (engine.optimizer().is_first_copy(spec)) once += spec.tensor.numel();
  }
  const ProcessGrid& grid = engine.grid();
  torch::Tensor all = torch::full({1}, static_cast<double>(once), torch::kDouble);
  grid.model->all_reduce(all);
  const std::string validation =
      data.valid ? c10::str(data.valid->size(), " to validate on") : "none to validate on";
  return {c10::str("model: ", static_cast<int64_t>(all.item<double>()), " parameters, at most ",
                   max_over(*grid.world, here), " on a rank; vocabulary of ", facts.vocab_size,
                   ", padded to ", facts.padded_vocab_size),
          "memory kept between steps: " + memory_forecast(*grid.world, engine.optimizer()),
          c10::str("data: ", samples.train, " samples of ", facts.seq_length,
                   " tokens to train on, of ", data.train->size(), " prepared; ", validation)};
}

// Returns a switch's attribute name, since its flag may be the one that clears it.
std::string name_of(const Setting& setting) {
  return std::holds_alternative<bool>(setting.value) ? setting.dest : "--" + setting.flag;
}

void print_start(const ProcessGrid& grid, const Placement& placement,
                 const std::vector<std::string>& facts, const ParseResult& parsed,
                 const std::vector<std::string>& lines) {
  if (grid.world->rank() != 0) return;
  std::printf("mesh: %s, %d threads per rank\n", describe(grid.topology).c_str(),
              at::get_num_threads());
  if (!placement.text.empty()) std::printf("device: %s\n", placement.text.c_str());
  for (const std::string& line : facts) std::printf("%s\n", line.c_str());
  for (const Setting& setting : parsed.settings) {
    if (!setting.given) continue;
    std::printf("  %s %s\n", name_of(setting).c_str(), setting.text.c_str());
  }
  for (const std::string& note : parsed.notes) std::printf("note: %s\n", note.c_str());
  for (const std::string& line : lines) std::printf("%s\n", printable_message(line).c_str());
  std::fflush(stdout);
}

// Claims the run's output files, with the sole right to write them. Called on rank 0 only.
std::vector<OutputLock> claim_files(const RunConfig& run) {
  std::vector<OutputLock> locks;
  const auto claim = [&](const char* flag, const std::string& path, const OutputKind& kind) {
    if (path.empty()) return;
    if (auto lock = claim_output(flag, path, kind)) locks.push_back(std::move(*lock));
  };
  claim("--loss-csv", run.loss_csv, loss_csv_kind());
  claim("--trace", run.trace, trace_kind());
  return locks;
}

void run(const Config& config, const ModelDefinition& model, const ModelFacts& facts,
         const ParseResult& parsed, const FlagTable& flags, const Placement& placement,
         StopRequest& interruption) {
  const CommPtr& world = placement.world;
  BatchPlan plan = plan_batches(config, world->size());
  CommCounts counts;
  const ProcessGrid grid(
      world, {.pp_size = config.parallel.pp, .dp_size = plan.dp, .tp_size = config.parallel.tp},
      config.run.report_comm || config.run.profile_step > 0 ? &counts : nullptr, placement.device);
  std::optional<AllocationGauge> allocations;
  if (config.run.report_memory) allocations.emplace();
  std::shared_ptr<const SaveLock> save_lock;
  std::vector<OutputLock> files;
  if (!config.run.dry_run) {
    if (const std::string& folder = config.checkpoint.save; !folder.empty())
      save_lock = std::make_shared<SaveLock>(*world, folder, "--save");
    all_or_none(*world, [&] {
      if (world->rank() == 0) files = claim_files(config.run);
    });
  }
  const auto stage = model.make_stage(config, grid, weights_dtype(config.precision));
  EngineConfig engine_flags = engine_config(config, plan, save_lock);
  engine_flags.model = facts;
  engine_flags.settings = flags.settings();
  std::erase_if(engine_flags.settings,  // a checkpoint does not keep how ranks were started
                [](const Setting& setting) { return setting.flag == "local-ranks"; });
  Engine engine(*stage, grid, engine_flags);
  std::vector<std::string> report;
  if (!config.checkpoint.load.empty()) report = load(config.checkpoint, engine);
  plan = rest_of(plan, config.batch, engine.state());
  const SampleCounts samples = samples_to_read(config, plan, engine.state());
  Datasets data;
  all_or_none(*world,
              [&] { data = make_datasets(config, samples, facts.seq_length, facts.vocab_size); });
  check_same(*world,
             {{"the number of training samples", c10::str(data.train->size())},
              {"the number of validation samples", c10::str(data.valid ? data.valid->size() : 0)}});
  const std::vector<std::string> saves = plan_saves(config.checkpoint, plan, engine);
  report.insert(report.end(), saves.begin(), saves.end());
  print_start(grid, placement, describe(samples, facts, data, engine), parsed, report);
  if (config.run.dry_run) return;
  if (config.checkpoint.async_save) engine.reserve_snapshot();
  train(config, plan, engine, *data.train, data.valid.get(), interruption);
  if (!allocations) return;
  for (const std::string& line : memory_report(*world, engine.optimizer(), allocations->bytes())) {
    if (world->rank() == 0) std::printf("%s\n", line.c_str());
  }
}

// A rank's flags and model. They are read before there are other ranks, because the flags say how
// to start these and how long to wait for them.
struct CommandLine {
  CommandLine(const std::string& program, const std::string& description,
              const MakeModel& make_model, const std::vector<std::string>& args)
      : model(make_model()), flags(program, description) {
    add_flags(flags, config);
    model->add_flags(flags);
    if (args.empty()) error = "got no flags; --help lists them.\n" + description;
    try {
      if (!args.empty()) parsed = parse(flags, config, args);
    } catch (const std::exception& e) {
      error = printable_message(e);
    }
    if (config.run.local_ranks > 0 && started_by_launcher() && error.empty())
      error = "--local-ranks starts ranks, and so does mpirun: leave one of them out";
  }

  Config config;
  const std::unique_ptr<ModelDefinition> model;
  FlagTable flags;
  ParseResult parsed;
  std::string error;
};

// Checks that all ranks have started with the same flags, except --nvme-path, where each has its
// own file.
void check_start(Communicator& world, const CommandLine& line) {
  meet(world, line.config.run.patience());
  check_same(world, {{"the program", line.flags.program()},
                     {"the build", build_id()},
                     {"--help or --version", line.parsed.text.empty() ? "absent" : "given"}});
  throw_together(world, line.error);
  Facts told;
  for (const Setting& setting : line.parsed.settings)
    if (setting.flag != "nvme-path") told.emplace_back(name_of(setting), setting.text);
  const std::string of_json = " of --deepspeed_config";
  told.emplace_back("gradient_accumulation_steps" + of_json,
                    std::to_string(line.config.batch.gradient_accumulation_steps));
  told.emplace_back("tag_validation" + of_json,
                    kTagValidations[static_cast<size_t>(line.config.engine.tag_validation)]);
  check_same(world, told);
}

// Returns the size of the tokenizer's vocabulary, or the checkpoint's if that is larger, since
// model makers pad theirs. A checkpoint with more than kMostPadding extra entries has another
// tokenizer's vocabulary. Collective.
int vocabulary_of_run(const Config& config, Communicator& world, std::vector<std::string>& notes) {
  constexpr int64_t kMostPadding = 4096;
  const CheckpointConfig& c = config.checkpoint;
  int own = 0;
  all_or_none(world, [&] { own = vocabulary_size(config.data); });
  check_same(world, {{"the vocabulary's size", std::to_string(own)}});
  if (config.data.tokenizer_type == "NullTokenizer" || c.load.empty()) return own;
  const int64_t saved = max_over(
      world, saved_vocabulary(c.load, {.tag = c.load_tag, .universal = c.universal_checkpoint}));
  if (saved <= own || saved - own > kMostPadding) return own;
  notes.push_back(c10::str("the vocabulary of the checkpoint has ", saved,
                           " entries, the tokenizer ", own,
                           ": the model keeps those that no text has, padding of its makers"));
  return static_cast<int>(saved);
}

// Errors that every rank finds alike (flags, files) are thrown as CollectiveError.
void main_of(const CommandLine& line, const Job& job) {
  const Config& config = line.config;
  const CommPtr world = job.world({.time = config.run.patience()});
  check_start(*world, line);
  if (const std::string& text = line.parsed.text; !text.empty()) {
    if (world->rank() == 0) std::printf("%s", text.c_str());
    return;
  }
  set_threads(*job.local());
  ParseResult parsed = line.parsed;
  const int vocab_size = vocabulary_of_run(config, *world, parsed.notes);
  ModelFacts facts;
  all_or_none(*world, [&] { facts = line.model->settle(config, vocab_size, world->size()); });
  const CheckpointConfig& c = config.checkpoint;
  StopRequest interruption(world, {.duration_minutes = c.exit_duration_in_mins,
                                   .kill_switch = c.kill_switch_file,
                                   .save_switch = c.save_switch_file});
  run(config, *line.model, facts, parsed, line.flags, place(config, job), interruption);
}

// Called when all ranks have the same error. The first of them prints it once no rank prints any
// more, and ends the job, so that it is the last line.
[[noreturn]] void end_together(const std::string& program, const Job& job,
                               const std::string& error) {
  const CommPtr world = job.world();
  const std::vector<int> absent = world->roll_call(std::chrono::seconds(2));
  const bool first = world->rank() == 0 || (!absent.empty() && absent[0] == 0);
  if (!first) HeldSignals::await_end(std::chrono::seconds(10));
  if (first) std::fprintf(stderr, "%s: %s\n", program.c_str(), error.c_str());
  job.abort(1);
}

// Returns only if the run succeeded.
void live(const CommandLine& line, const Job& job) {
  const std::string& program = line.flags.program();
  std::string error;
  try {
    return main_of(line, job);
  } catch (const CollectiveError& collective) {
    end_together(program, job, printable_message(collective));
  } catch (const c10::Error& e) {
    error = e.what_without_backtrace();
  } catch (const std::exception& e) {
    error = printable_message(e);
  }
  std::fprintf(stderr, "%s: [rank %d] %s\n", program.c_str(), job.world()->rank(), error.c_str());
  job.abort(1);
}

}  // namespace

int pretrain(int argc, char** argv, const std::string& program, const std::string& description,
             const MakeModel& make_model) {
  keep_freed_memory();
  set_process_limits();
  const HeldSignals held;
  const auto read = [&] {
    return CommandLine(program, description, make_model, {argv + 1, argv + argc});
  };
  const CommandLine line = read();
  if (!started_by_launcher()) {
    try {
      run_on_threads(std::max(1, line.config.run.local_ranks),
                     [&](const Job& job) { live(read(), job); });
    } catch (const std::exception& e) {
      std::fprintf(stderr, "%s: --local-ranks %d: %s\n", program.c_str(),
                   line.config.run.local_ranks, printable_message(e).c_str());
      return 1;
    }
    return stdout_is_written(program) ? 0 : 1;
  }
  std::optional<StartWatch> watch(std::in_place, program, line.config.run.patience());
  const MpiEnvironment mpi(&argc, &argv);
  watch.reset();
  live(line, mpi);
  return stdout_is_written(program) ? 0 : 1;
}

}  // namespace anymesh
