#include "framework/run/pretrain.h"

#include <ATen/Parallel.h>
#include <c10/util/StringUtil.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>

#include "framework/checkpoint/save/save_folder.h"
#include "framework/comm/agreement.h"
#include "framework/comm/lone_job.h"
#include "framework/comm/mpi_job.h"
#include "framework/comm/thread_job.h"
#include "framework/config/parse.h"
#include "framework/config/require.h"
#include "framework/profile/report.h"
#include "framework/run/checkpoint_args.h"
#include "framework/run/datasets.h"
#include "framework/run/device.h"
#include "framework/run/launch.h"
#include "framework/run/load_start.h"
#include "framework/run/memory_check.h"
#include "framework/run/run_log.h"
#include "framework/run/run_record.h"
#include "framework/run/trainer.h"
#include "framework/util/cores.h"
#include "framework/util/plain_words.h"
#include "framework/util/printable.h"
#include "framework/util/process.h"
#include "framework/util/terminal.h"
#include "framework/zero/memory.h"
#include "framework/zero/memory_report.h"

namespace anymesh {
namespace {

// Makes threads of OpenMP sleep after a short wait for each other. By default they spin for
// milliseconds (300,000 pauses in libgomp), which delays every parallel loop by as much when
// another process takes a core meanwhile, or a container's quota is used up. The library reads its
// setting before main(), so this starts the program once more, unless the environment has a setting
// already or there is nobody to wait for (OMP_NUM_THREADS=1). Call it first.
void wait_briefly(char** argv) {
  for (const char* name : {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "KMP_BLOCKTIME"})
    if (std::getenv(name)) return;
  const char* threads = std::getenv("OMP_NUM_THREADS");
  if (threads && std::string_view(threads) == "1") return;
  setenv("GOMP_SPINCOUNT", "1000", /*overwrite=*/1);
  execv("/proc/self/exe", argv);  // returns only if it fails: then threads spin
}

// Sets this rank's number of threads: OMP_NUM_THREADS if set, else its share of the cores that it
// may run on, within the container's quota. The machine's ranks that may run on the same cores
// share them.
void set_threads(Communicator& local) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  const bool known = sched_getaffinity(0, sizeof cores, &cores) == 0;
  const std::string mine(reinterpret_cast<const char*>(&cores), sizeof cores);
  const auto all = gather_strings(local, mine);
  if (!known || std::getenv("OMP_NUM_THREADS")) return;
  const auto sharing = static_cast<int>(std::count(all.begin(), all.end(), mine));
  at::set_num_threads(std::max(1, cores_within(cpu_quota(), CPU_COUNT(&cores)) / sharing));
}

torch::Dtype weights_dtype(const PrecisionConfig& precision) {
  return precision.bf16 ? torch::kBFloat16 : precision.fp16 ? torch::kHalf : torch::kFloat;
}

// Recomputes the number of steps from the rest of --train-samples, because earlier steps may have
// had other batch sizes.
BatchPlan rest_of(BatchPlan plan, const BatchConfig& batch, const TrainState& state) {
  if (batch.train_samples != 0) {
    plan.train_iters =
        state.iteration +
        plan.ramp.steps(state.consumed_train_samples, batch.train_samples, plan.global_batch_size);
  }
  return plan;
}

// Makes the data sets, the same ones on every rank, and records their order in the engine's state.
// Adds lines to `report`. Collective.
Datasets make_same_datasets(const Config& config, const BatchPlan& plan, Engine& engine,
                            const MakeOwnDatasets& own, std::vector<std::string>& report) {
  Communicator& world = *engine.grid().world;
  TrainState& state = engine.state();
  Datasets data;
  all_or_none(world, [&] { data = make_datasets(config, plan, state, config.engine.model, own); });
  Facts told{{"the number of training samples", c10::str(data.train->size())},
             {"the number of validation samples", c10::str(data.valid ? data.valid->size() : 0)}};
  for (const auto& [flag, value] : data.order.facts)
    told.emplace_back("the data's " + flag.substr(flag.starts_with("--") ? 2 : 0), value);
  check_same(world, told);
  if (!state.data || state.data->facts != data.order.facts) state.verified.reset();
  state.data = data.order;
  report.insert(report.end(), data.notes.begin(), data.notes.end());
  return data;
}

// Returns the lines on model, memory and data, which are printed below the mesh. Adds the numbers
// to the record's `start`. Collective.
std::vector<std::string> describe(const ModelFacts& model, const Datasets& data,
                                  const Engine& engine, RecordLine& start) {
  int64_t here = 0;
  std::array<double, 2> once{};  // all, and those trained
  for (const ParamSpec& spec : engine.module().params()) {
    here += spec.tensor.numel();
    if (!engine.optimizer().counts_here(spec, /*partitioned=*/false)) continue;
    once[0] += static_cast<double>(spec.tensor.numel());
    if (!spec.frozen()) once[1] += static_cast<double>(spec.tensor.numel());
  }
  const ProcessGrid& grid = engine.grid();
  torch::Tensor all = torch::tensor({once[0], once[1]}, torch::kDouble);
  grid.world->all_reduce(all);
  const std::string validation =
      data.valid ? c10::str(data.valid->size(), " to validate on") : "none to validate on";
  const auto parameters = static_cast<int64_t>(all[0].item<double>()),
             trained = static_cast<int64_t>(all[1].item<double>());
  const int64_t largest = max_over(*grid.world, here);
  start.update(
      {{"parameters", parameters}, {"largest_rank", largest}, {"vocabulary", model.vocab_size}});
  const std::string of_them = trained < parameters ? c10::str(trained, " of them trained, ") : "",
                    vocabulary = model.vocab_size > 0
                                     ? c10::str("; vocabulary of ", model.vocab_size,
                                                ", padded to ", model.padded_vocab_size)
                                     : "";
  const bool lone = grid.reports->size() < grid.world->size();
  return {lone ? c10::str("model: ", largest, " parameters on this rank", vocabulary)
               : c10::str("model: ", parameters, " parameters, ", of_them, "at most ", largest,
                          " on a rank", vocabulary),
          "memory kept between steps: " + memory_forecast(*grid.world, engine.optimizer()),
          c10::str("data: ", data.counts.train, " samples of ", model.seq_length,
                   " tokens to train on, of ", data.train->size(), " prepared; ", validation)};
}

// Returns a switch's attribute name, since its flag may be the one that clears it.
std::string name_of(const Setting& setting) {
  return std::holds_alternative<bool>(setting.value) ? setting.dest : "--" + setting.flag;
}

// Prints the mesh, the run's `facts`, the flags given, and `report`. All but the last are for the
// record's `start` too.
void print_start(const ProcessGrid& grid, const Placement& placement,
                 const std::vector<std::string>& facts, const ParseResult& parsed,
                 const std::vector<std::string>& report, RecordLine& start) {
  if (placement.world->rank() != 0) return;
  const auto print_fact = [&](const std::string& fact) {
    std::printf("%s\n", fact.c_str());
    start["facts"].push_back(fact);
  };
  print_fact(c10::str("mesh: ", describe(grid.topology), ", ", at::get_num_threads(),
                      " threads per rank"));
  if (!placement.text.empty()) print_fact("device: " + placement.text);
  for (const std::string& fact : facts) print_fact(fact);
  for (const Setting& setting : parsed.settings) {
    if (!setting.given || setting.words.empty()) continue;
    std::printf("  %s\n", setting.words.c_str());
    start["flags"].push_back(setting.words);
  }
  for (const std::string& note : parsed.notes) print_fact("note: " + note);
  for (const std::string& line : report)
    std::printf("%s\n", coloured_line(printable_message(line), stdout).c_str());
  std::fflush(stdout);
}

// The run's output files and its folder of checkpoints, with the sole right to write them.
struct Outputs {
  std::shared_ptr<const SaveLock> checkpoints;
  std::vector<OutputLock> files;  // rank 0's
};

// Collective.
Outputs claim_outputs(const Config& config, Communicator& world) {
  Outputs outputs;
  if (config.run.dry_run) return outputs;
  if (const std::string& folder = config.checkpoint.save; !folder.empty())
    outputs.checkpoints = std::make_shared<SaveLock>(world, folder, "--save");
  const auto claim = [&](const char* flag, const std::string& path, const OutputKind& kind) {
    if (path.empty()) return;
    if (auto lock = claim_output(flag, path, kind)) outputs.files.push_back(std::move(*lock));
  };
  all_or_none(world, [&] {
    if (world.rank() != 0) return;
    claim("--loss-csv", config.run.loss_csv, loss_csv_kind());
    claim("the record of --loss-csv,", RunRecord::path_beside(config.run.loss_csv),
          RunRecord::kind());
    claim("--trace", config.run.trace, trace_kind());
  });
  return outputs;
}

// A rank's flags and model. They are read before there are other ranks, because the flags say how
// to start these and how long to wait for them.
struct CommandLine {
  CommandLine(const TrainingProgram& program, const std::vector<std::string>& args)
      : program(program), model(program.model()), flags(program.name, program.description) {
    std::shared_ptr<Optimizer> own = program.optimizer ? program.optimizer() : nullptr;
    OptimizerConfig& optimizer = config.engine.zero.optimizer;
    optimizer.own = own;
    if (own) optimizer.name = own->name();
    add_flags(flags, config,
              {.data = program.datasets != nullptr, .schedule = program.schedule != nullptr});
    if (own) own->add_flags(flags);
    const size_t first_of_model = flags.flags().size();
    model->add_flags(flags);
    if (args.empty())
      error = "got no flags.\n" + program.description +
              "\nAll flags: --help. Read on: docs/training.md. A first run: tutorials/read_it.sh";
    try {
      std::vector<std::string> notes;
      const auto take_args = [&] {
        if (config.checkpoint.use_checkpoint_args &&
            !(config.checkpoint.load + config.checkpoint.pretrained_checkpoint).empty())
          take_checkpoint_args(flags, first_of_model, config, notes);
      };
      if (!args.empty()) parsed = parse(flags, config, args, take_args);
      parsed.notes.insert(parsed.notes.end(), notes.begin(), notes.end());
    } catch (const std::exception& e) {
      error = printable_message(e);
    }
    if (config.run.local_ranks > 0 && started_by_launcher() && error.empty())
      error = "--local-ranks starts ranks, and so does mpirun: leave one of them out";
    if (config.run.pretend_ranks > 0 && started_by_launcher() && error.empty())
      error = "--pretend-ranks runs one rank alone: start it without mpirun";
    if (config.run.pretend_rank > 0 && config.run.pretend_rank >= config.run.pretend_ranks &&
        error.empty())
      error = c10::str("--pretend-rank ", config.run.pretend_rank, ": expected less than ",
                       "--pretend-ranks, ", config.run.pretend_ranks);
  }

  const TrainingProgram& program;
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

// Completes the flags by the vocabulary and the model's facts. Collective.
void settle(CommandLine& line, Communicator& world) {
  EngineConfig& engine = line.config.engine;
  const Vocabulary vocabulary = line.program.datasets
                                    ? line.program.vocabulary
                                    : vocabulary_of_run(line.config, world, line.parsed.notes);
  line.config.data.eod_token = vocabulary.eod;
  all_or_none(world, [&] {
    engine.model = line.model->settle(line.config, vocabulary.size, world.size());
    require(line.config.parallel.same_bits == 0 || engine.model.keeps_bits,
            "--same-bits: the model of ", line.program.name,
            " does not promise the same bits on every mesh; leave it out");
  });
  engine.settings = line.flags.settings();
  std::erase_if(engine.settings, [](const Setting& setting) {
    return setting.flag == "local-ranks" || setting.flag.starts_with("pretend-rank") ||
           setting.flag == "num-layers-per-virtual-pipeline-stage" ||
           setting.flag == "pipeline-schedule" || setting.flag == "overlap-param-gather" ||
           setting.flag == "recompute-modules";
  });  // a checkpoint keeps no flag that says where or when its numbers were computed
}

// Puts the program's own schedule, if it has one, in place of the built-in one. Its decay ends with
// the run, as no flag says otherwise. Collective.
void take_own_schedule(const CommandLine& line, Communicator& world, LrSchedule& schedule) {
  if (!line.program.schedule) return;
  OwnSchedule own;
  all_or_none(world, [&] {
    own = line.program.schedule(line.config, *line.model, schedule.decay_samples);
    if (!own.factor || own.name.empty() ||
        std::ranges::find(kLrDecayStyles, own.name) != std::end(kLrDecayStyles))
      throw std::logic_error("the program's schedule \"" + own.name +
                             "\": expected a factor, and a name that no built-in schedule has");
  });
  check_same(world, {{"the program's schedule", own.name}});
  schedule.style = std::move(own.name);
  schedule.factor = std::move(own.factor);
}

// Throws if the program's parts do not fit each other.
void check_program(const TrainingProgram& program) {
  if (!program.model) throw std::logic_error(program.name + ": a program needs a .model");
  if (!program.datasets && program.vocabulary.size != 0)
    throw std::logic_error(program.name + ": .vocabulary is of .datasets, which is null");
  if (!program.on_step != program.metrics.empty())
    throw std::logic_error(program.name + ": .metrics names the numbers of .on_step; give both");
  check_names(program.metrics, loss_csv_columns());
}

void print_memory(const AllocationGauge& allocations, const Engine& engine, Communicator& world,
                  RunRecord& record) {
  const auto rows = memory_report(world, engine.optimizer(), allocations.bytes());
  if (world.rank() != 0) return;
  for (const std::string& line : memory_lines(rows)) std::printf("%s\n", line.c_str());
  record.add(record_of(rows));
}

void train(Trainer& trainer, Engine& engine) {
  try {
    while (const auto batches = trainer.next_batch())
      trainer.end_step(engine.train_batch(*batches), *batches);
  } catch (const CollectiveError&) {
    trainer.finish_save();  // a step that fails leaves it as it is
    throw;
  }
  trainer.finish();
}

// A rank's program, from its flags to the last save. Errors that every rank finds alike (flags,
// files) are thrown as CollectiveError. Any error ends the job.
void run(CommandLine& line, const Job& job) try {
  const Config& config = line.config;
  const CommPtr ranks = job.world({.time = config.run.patience()});
  check_start(*ranks, line);
  if (ranks->rank() == 0) std::printf("%s", line.parsed.text.c_str());
  if (!line.parsed.text.empty()) return;  // --help or --version
  set_threads(*job.local());
  settle(line, *ranks);
  StopRequest interruption(ranks, config.checkpoint);

  const Placement placement = place(config, job);
  Communicator& world = *placement.world;
  BatchPlan plan = plan_batches(config, world.size());
  CommCounts counts;
  const bool count_calls = config.run.report_comm || config.run.profile_step > 0;
  const int lone = config.run.pretend_ranks > 0 ? config.run.pretend_rank : -1;
  ProcessGrid grid(placement.world, config.parallel.topology(plan.dp, config.engine.model.layers),
                   count_calls ? &counts : nullptr, placement.device, lone);
  grid.same_bits = SameBits::of(config.parallel.same_bits, config.engine.model.seq_length);
  std::optional<AllocationGauge> allocations;
  if (config.run.report_memory) allocations.emplace(placement.device);
  const Outputs outputs = claim_outputs(config, world);
  const auto stage = line.model->make_stage(config, grid, weights_dtype(config.precision));
  check_memory(*stage, config, grid, *job.local());
  EngineConfig of_engine = engine_config(config, plan, outputs.checkpoints);
  if (lone >= 0) of_engine.check_for_nan = false;
  take_own_schedule(line, world, of_engine.schedule);
  Engine engine(*stage, grid, std::move(of_engine));

  const auto& import = line.program.import;
  std::vector<std::string> report = load_start(
      config.checkpoint, engine,
      import ? [&](const std::filesystem::path& folder,
                   bool weights_only) { return import(*line.model, folder, weights_only); }
             : ImportForeign());
  check_frozen(config, engine, report);
  plan = rest_of(plan, config.batch, engine.state());
  if (!line.flags.given("log-interval"))
    line.config.run.log_interval =
        std::clamp<int64_t>(plan.train_iters / 10, 1, config.run.log_interval);
  const MakeOwnDatasets own = [&](const SampleCounts& read) {
    return line.program.datasets(config, *line.model, read);
  };
  const Datasets data =
      make_same_datasets(config, plan, engine, line.program.datasets ? own : nullptr, report);
  plan_saves(config.checkpoint, plan, engine, report);
  if (grid.topology.chunks > 1 && !config.checkpoint.save.empty())
    report.push_back(
        "saves have the stages' chunks: DeepSpeed, which knows no chunks, takes them by "
        "ds_to_universal, not as they are");
  if (const Coord& at = grid.coord; lone >= 0)
    report.push_back(c10::str("rank ", lone, " runs alone, of stage ", at.pp, ", dp ", at.dp,
                              ", tp ", at.tp, ": losses and other values mean nothing"));
  if (const std::string& note = config.engine.model.gpu_note;
      !grid.device.is_cpu() && !note.empty())
    line.parsed.notes.push_back(note);
  RecordLine start = start_of_record(grid.topology, engine.state().iteration);
  const auto facts = describe(config.engine.model, data, engine, start);
  print_start(grid, placement, facts, line.parsed, report, start);
  if (config.run.dry_run) return;
  RunRecord record(world.rank() == 0 ? config.run.loss_csv : "", start);
  if (config.checkpoint.async_save) engine.reserve_snapshot();

  Trainer trainer(config, plan, line.program, *line.model, engine, data, interruption, record);
  if (trainer.start()) train(trainer, engine);
  if (allocations) print_memory(*allocations, engine, world, record);
} catch (...) {
  end_job(line.flags.program(), job);
}

}  // namespace

int pretrain(int argc, char** argv, const TrainingProgram& program) {
  check_program(program);
  wait_briefly(argv);
  keep_freed_memory();
  set_process_limits();
  const HeldSignals held;
  const auto read = [&] { return CommandLine(program, {argv + 1, argv + argc}); };
  CommandLine line = read();
  if (started_by_launcher()) {
    std::optional<StartWatch> watch(std::in_place, program.name, line.config.run.patience());
    const MpiEnvironment mpi(&argc, &argv);
    watch.reset();
    run(line, mpi);
    return stdout_is_written(program.name) ? 0 : 1;
  }
  if (line.config.run.pretend_ranks > 0 && line.error.empty()) {
    run(line, LoneJob(line.config.run.pretend_ranks, line.config.run.pretend_rank));
    return stdout_is_written(program.name) ? 0 : 1;
  }
  try {
    const int ranks = line.error.empty() ? std::max(1, line.config.run.local_ranks) : 1;
    run_on_threads(ranks, [&](const Job& job) {
      CommandLine own = read();
      run(own, job);
    });
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s: --local-ranks %d: %s\n", program.name.c_str(),
                 line.config.run.local_ranks, printable_message(e).c_str());
    return 1;
  }
  return stdout_is_written(program.name) ? 0 : 1;
}

}  // namespace anymesh
