#include <c10/util/StringUtil.h>

#include <algorithm>
#include <set>
#include <sstream>

#include "framework/checkpoint/checkpoint.h"
#include "framework/checkpoint/format/convert.h"
#include "framework/checkpoint/format/file_io.h"
#include "framework/checkpoint/format/names.h"
#include "framework/checkpoint/format/torch_file.h"
#include "framework/checkpoint/loaders.h"
#include "framework/checkpoint/metadata.h"
#include "framework/comm/agreement.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

bool weights_only(const LoadOptions& options) {
  return options.load_module_only || !options.load_optimizer_states;
}

fs::path pointer_file(const fs::path& load_dir, bool universal) {
  return load_dir / (universal ? kLatestUniversalFile : kLatestFile);
}

// Why there is nothing to load.
std::string nothing_in(const fs::path& load_dir, bool universal) {
  if (!fs::is_directory(load_dir))
    return c10::str("--load ", load_dir.string(), ": no such folder; nothing was loaded");
  const bool other = fs::exists(pointer_file(load_dir, true));
  return c10::str("--load ", load_dir.string(), ": no file '",
                  pointer_file(load_dir, universal).filename().string(),
                  "' there. It holds: ", list_folder(load_dir), ". ",
                  other ? "It has a universal checkpoint: add --universal-checkpoint."
                        : "It is not a checkpoint folder.");
}

// The folder of a tag, or the one that the pointer file names.
fs::path tag_in(const fs::path& load_dir, std::string tag, bool universal) {
  const fs::path pointer = pointer_file(load_dir, universal);
  if (!tag.empty()) {
    TORCH_CHECK(tag.find('/') == std::string::npos && fs::is_directory(load_dir / tag),
                load_dir.string(), " has no tag '", tag,
                "'. It holds: ", fs::is_directory(load_dir) ? list_folder(load_dir) : "nothing");
    return load_dir / tag;
  }
  tag = read_tag(pointer);
  TORCH_CHECK(
      !tag.empty() && tag.find('/') == std::string::npos && fs::is_directory(load_dir / tag),
      pointer.string(), " names '", tag,
      "', which is not a folder beside it. It holds: ", list_folder(load_dir));
  return load_dir / tag;
}

// --universal-checkpoint with only an ordinary checkpoint there: converts it first.
std::string make_universal(const fs::path& load_dir) {
  if (!fs::exists(load_dir / kLatestFile) || fs::exists(load_dir / kLatestUniversalFile)) return "";
  const fs::path input = tag_in(load_dir, "", /*universal=*/false);
  fs::path output = input;
  output += kUniversalSuffix;
  const ConvertReport report = convert_to_universal({.input = input, .output = output}, {});
  return c10::str("no universal checkpoint in ", load_dir.string(), ": converted ",
                  input.filename().string(), " to ", output.filename().string(), " (",
                  report.parameters, " parameters)");
}

// Any rank's metadata says what the run was: they differ in parameter shapes and ZeRO 0's optimizer
// alone.
fs::path first_metadata_file(const fs::path& folder) {
  const fs::path sharded = folder / zero3_model_states_file(0, 0);
  return fs::exists(sharded) ? sharded : existing(folder / model_states_file(0));
}

void restore_schedule(const Value& metadata, const LoadOptions& options, LrSchedule& schedule) {
  if (options.load_module_only || !options.load_lr_scheduler_states) return;
  if (options.schedule == LoadOptions::Schedule::MustAgree) check_same_schedule(metadata, schedule);
  if (options.schedule == LoadOptions::Schedule::Checkpoints)
    schedule = schedule_of(metadata, schedule);
}

void restore_state(const Value& metadata, const LoadOptions& options, TrainState& state) {
  if (options.load_module_only) return;
  TrainState saved = train_state_of(metadata);
  saved.scaler = state.scaler;
  if (!options.load_rng) saved.dropout_seed = state.dropout_seed;
  if (!options.load_lr_scheduler_states) saved.scheduled_samples = 0;
  state = saved;
}

// `saved` is a scaler object, or FP16_Optimizer's dict with the same keys. A source in fp32 or bf16
// has nothing to say about the scale that fp16 needs (DeepSpeed would go on with its 1).
std::string restore_scaler(const Value& saved, LossScaler& scaler) {
  const Value dynamic = saved ? saved.find(keys::kDynamic) : Value(),
              flag = saved ? saved.find(keys::kDynamicLossScale) : Value();
  if (!scaler.dynamic) return "";
  if (!(dynamic && dynamic.as_bool()) && !(flag && flag.as_bool()))
    return c10::str("the checkpoint has no dynamic loss scale: starting at ", scaler.scale,
                    " (--initial-loss-scale)");
  scaler.scale = saved.at(keys::kCurScale).as_double();
  scaler.iteration = saved.at(keys::kCurIter).as_int();
  scaler.last_overflow = saved.at(keys::kLastOverflowIter).as_int();
  const Value left = saved.find(keys::kCurHysteresis);
  if (left) scaler.hysteresis_left = std::min(left.as_int(), scaler.hysteresis);
  return "";
}

// Parameters that the checkpoint has under other names than this run will save them under.
std::string announce_names(const WholeCheckpoint& checkpoint, const CheckpointedRun& run) {
  for (const ParamSpec& spec : run.stage.params()) {
    if (checkpoint.contains(spec.name) || !checkpoint.contains(spec.other_name)) continue;
    return c10::str("the checkpoint's parameter names are translated: ", spec.other_name, " is ",
                    spec.name, " here, and in what this run saves");
  }
  return "";
}

std::string listed(const std::set<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

// Refuses what would have to make up an optimizer.
void check_has_optimizer(const Value& metadata, const LoadOptions& options) {
  TORCH_CHECK(
      !metadata.find(keys::kWeightsOnly) || weights_only(options), metadata.where(),
      ": the checkpoint was saved without optimizer state (--no-save-optim): it cannot be "
      "resumed. --finetune starts at step 0 from its weights, --no-load-optim goes on at its "
      "step with fresh moments");
}

// Parameters that only one of the two has: an error if the load is strict, else a line to print; but
// frozen ones may be missing. Collective.
std::string check_names(const WholeCheckpoint& checkpoint, const CheckpointedRun& run,
                        const LoadOptions& options) {
  std::string mine;
  for (const ParamSpec& spec : run.stage.params())
    mine += spec.name + "\n" + spec.other_name + "\n" + (spec.frozen() ? "frozen\n" : "\n");
  std::set<std::string> known, missing, excluded, unexpected;
  for (const std::string& stage : gather_strings(*run.grid.pp, mine)) {
    std::istringstream lines(stage);
    std::string name, other, frozen;
    while (std::getline(lines, name) && std::getline(lines, other) && std::getline(lines, frozen)) {
      known.insert({name, other});
      if (!checkpoint.contains(name) && !checkpoint.contains(other))
        (frozen.empty() ? missing : excluded).insert(name);
    }
  }
  for (const std::string& name : checkpoint.names())
    if (!known.contains(name)) unexpected.insert(name);
  std::string text;
  if (!missing.empty()) text += "\n  missing in the checkpoint: " + listed(missing);
  if (!unexpected.empty()) text += "\n  unexpected, not in this model: " + listed(unexpected);
  const std::string kept = excluded.empty()
                               ? ""
                               : "frozen parameters that the checkpoint leaves out keep the values "
                                 "they have: " +
                                     listed(excluded);
  if (text.empty()) return kept;
  text = checkpoint.path.string() + ": its parameters are not this model's:" + text;
  if (options.load_module_strict)
    throw CollectiveError(text +
                          "\nNothing was loaded. See the model's flags; --no-load-strict "
                          "loads those that both have.");
  return "WARNING: " + text +
         "\nMissing ones keep the values they start with, unexpected ones are left out "
         "(--no-load-strict)." +
         (kept.empty() ? "" : "\n" + kept);
}

// What was frozen in the checkpoint's run, and is trained in this one. `mine`: a name a line. Collective.
std::string announce_fresh(Communicator& world, const std::string& mine) {
  std::set<std::string> names;
  for (const std::string& rank : gather_strings(world, mine)) {
    std::istringstream lines(rank);
    for (std::string name; std::getline(lines, name);) names.insert(name);
  }
  if (names.empty()) return "";
  return "parameters that the checkpoint has no moments of, as they were not trained, start with "
         "zeros: " +
         listed(names);
}

// Megatron-DeepSpeed's files do not tell which of its two orders the fused weight has.
std::string announce_fused_order(const Value& metadata) {
  if (!is_megatrons(metadata)) return "";
  return "the checkpoint is Megatron-DeepSpeed's: query_key_value is read as per head or group its "
         "queries, key and value. Its versions since December 2024 order them differently; if this "
         "is of one, the loss jumps here";
}

// Parameters and their state are the checkpoint's, hyper-parameters the flags'. Megatron's ZeRO 3,
// for one, decays no weights whatever its flags say.
std::string announce_hyperparameters(const Value& optimizer_state, const CheckpointedRun& run) {
  const Value groups = optimizer_state ? optimizer_state.find(keys::kParamGroups) : Value();
  if (!groups) return "";
  double theirs = 0, ours = 0;
  for (const Value& group : groups.items()) {
    if (const Value decay = group.find(keys::kWeightDecay))
      theirs = std::max(theirs, decay.as_double());
  }
  for (const auto& group : run.optimizer.groups()) ours = std::max(ours, group.weight_decay);
  if (theirs == ours) return "";
  return c10::str("the checkpoint's run had a weight decay of ", theirs, "; this one goes on with ",
                  ours, ", as its flags say (--weight-decay)");
}

// An ordinary checkpoint that is newer than the universal one we were told to load is most likely a
// mistake.
std::vector<std::string> warnings(const fs::path& load_dir, const fs::path& folder,
                                  const Value& metadata, const LoadOptions& options) {
  if (!options.universal || !fs::exists(load_dir / kLatestFile)) return {};
  const std::string newest = read_tag(load_dir / kLatestFile);
  const int64_t here = train_state_of(metadata).iteration;
  const auto step = step_of_tag(newest);
  if (!step || *step <= here) return {};
  return {c10::str("WARNING: ", load_dir.string(), " holds a newer ordinary checkpoint, ", newest,
                   ", than the universal one, ", folder.filename().string(), " (iteration ", here,
                   "). Loading the universal one, as --universal-checkpoint says; ", "convert ",
                   newest, " first if you meant that.")};
}

}  // namespace

fs::path existing(const fs::path& file) {
  if (fs::exists(file)) return file;
  TORCH_CHECK(fs::is_directory(file.parent_path()), file.parent_path().string(),
              ": no such folder (--load)");
  TORCH_CHECK(false, file.string(),
              " is missing. The folder holds: ", list_folder(file.parent_path()));
}

LoadResult load_checkpoint(const fs::path& load_dir, CheckpointedRun& run,
                           const LoadOptions& options, TrainState& state) {
  c10::NoGradGuard no_grad;
  Communicator& world = *run.grid.world;
  LoadResult result;
  std::vector<std::string>& lines = result.report;
  bool found = false;
  all_or_none(world, [&] {
    if (world.rank() == 0 && options.universal && options.tag.empty()) {
      if (const std::string line = make_universal(load_dir); !line.empty()) lines.push_back(line);
    }
  });
  fs::path folder;
  Value metadata, own_files, scaler;
  all_or_none(world, [&] {
    found = !options.tag.empty() || fs::exists(pointer_file(load_dir, options.universal));
    if (!found) return;
    folder = tag_in(load_dir, options.tag, options.universal);
    metadata = read_torch_file(first_metadata_file(folder));
    if (!options.custom_load_fn) check_same_model(metadata, run);
    check_has_optimizer(metadata, options);
    restore_schedule(metadata, options, run.schedule);
    const bool own_way = options.custom_load_fn != nullptr || weights_only(options);
    if (!fs::exists(folder / kZeroFolder) && !own_way)
      own_files = find_own_files(folder, metadata, run);
  });
  if (!found) {
    lines.push_back(nothing_in(load_dir, options.universal));
    return result;
  }
  // Ranks go one way together: what each announces and checks is collective.
  if (max_over(world, own_files ? 0 : 1) > 0) own_files = {};
  WholeCheckpoint checkpoint;
  all_or_none(world, [&] {
    if (!own_files) checkpoint = open_whole_checkpoint(folder, /*threads=*/1);
  });
  const std::string names =
      own_files || options.custom_load_fn ? "" : check_names(checkpoint, run, options);
  std::string fresh;
  if (!weights_only(options)) run.optimizer.steps = 0;  // a rank may have nothing to read it from
  all_or_none(world, [&] {
    if (own_files) {
      scaler = load_own_files(folder, own_files, run);
    } else {
      for (const std::string& name :
           load_whole_tensors(checkpoint, run, weights_only(options), options.custom_load_fn))
        fresh += name + "\n";
      if (checkpoint.optimizer_state) scaler = checkpoint.optimizer_state.find(keys::kLossScaler);
    }
  });
  for (const std::string& line : {announce_fused_order(metadata), announce_names(checkpoint, run),
                                  announce_hyperparameters(checkpoint.optimizer_state, run), names,
                                  announce_fresh(*run.grid.world, fresh)}) {
    if (!line.empty()) lines.push_back(line);
  }
  // A rank whose partition is all padding, or whose stage is frozen, has read no step.
  run.optimizer.steps = max_over(world, run.optimizer.steps);
  run.optimizer.params_from_masters();
  restore_state(metadata, options, state);
  if (!weights_only(options)) {
    if (const std::string line = restore_scaler(scaler, state.scaler); !line.empty())
      lines.push_back(line);
  }
  if (const std::string line = announce_batch_size(metadata, run);
      !line.empty() && !options.load_module_only)
    lines.push_back(line);
  for (std::string& line : warnings(load_dir, folder, metadata, options))
    lines.push_back(std::move(line));
  const bool resharded = !own_files && !options.universal;
  lines.push_back(
      c10::str("loaded ", folder.string(), weights_only(options) ? " (weights only)" : "",
               resharded ? ", resharding it to this mesh" : "", ": iteration ", state.iteration,
               ", ", state.consumed_train_samples, " samples consumed, learning rate ",
               run.schedule.at(static_cast<double>(state.scheduled_samples))));
  result.path = folder;
  result.client_state = client_state_of(metadata, model_states(run, state));
  return result;
}

}  // namespace anymesh
