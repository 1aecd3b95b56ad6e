#include <c10/util/StringUtil.h>

#include <algorithm>
#include <set>

#include "framework/checkpoint/checkpoint.h"
#include "framework/checkpoint/load/adapter.h"
#include "framework/checkpoint/load/announcements.h"
#include "framework/checkpoint/load/collective_checksums.h"
#include "framework/checkpoint/load/find_loadable_tags.h"
#include "framework/checkpoint/load/fp32.h"
#include "framework/checkpoint/load/load_own_files.h"
#include "framework/checkpoint/load/load_whole_tensors.h"
#include "framework/checkpoint/load/open_for_all.h"
#include "framework/checkpoint/load/same_optimizer.h"
#include "framework/checkpoint/load/same_settings.h"
#include "framework/checkpoint/metadata.h"
#include "framework/comm/agreement.h"
#include "framework/format/dialects.h"
#include "framework/format/folder.h"
#include "framework/format/io.h"
#include "framework/format/layout.h"
#include "framework/format/torch_file.h"
#include "framework/format/whole.h"
#include "framework/util/errors.h"
#include "framework/util/shell_word.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

bool weights_only(const LoadOptions& options) {
  return options.load_module_only || !options.load_optimizer_states;
}

std::string falling_back(const std::string& tag, const std::string& damage,
                         const std::string& next) {
  return c10::str("WARNING: ", tag, " is damaged: ", damage, ". FALLING BACK to ", next,
                  " (--no-fallback would stop here)");
}

// Explains why there is nothing to load.
std::string nothing_in(const fs::path& load_dir, bool universal) {
  if (!fs::is_directory(load_dir))
    return c10::str("--load ", load_dir.string(), ": no such folder; nothing was loaded");
  if (is_tag_folder(load_dir)) {
    const fs::path folder = fs::canonical(load_dir);
    return c10::str("--load ", load_dir.string(), ": is the folder of one tag; give --load ",
                    shell_word(folder.parent_path()), " --load-tag ", shell_word(folder.filename()),
                    fs::exists(folder / kZeroFolder) ? " --universal-checkpoint" : "");
  }
  const bool other = fs::exists(load_dir / kLatestUniversalFile);
  return c10::str("--load ", load_dir.string(), ": no file '",
                  universal ? kLatestUniversalFile : kLatestFile,
                  "' there. It holds: ", list_folder(load_dir), ". ",
                  other ? "It has a universal checkpoint: add --universal-checkpoint."
                        : "It is not a checkpoint folder.");
}

// Another framework's files are converted each time, as they may have changed.
std::vector<std::string> import_foreign(const fs::path& load_dir, const LoadOptions& options) {
  if (!options.universal)
    throw UserError("--load " + load_dir.string() +
                    ": another framework saved this; add --universal-checkpoint");
  if (options.import) return options.import(load_dir, weights_only(options));
  throw UserError(load_dir.string() +
                  ": another framework saved this, and this program does not say under which "
                  "names (TrainingProgram::import)");
}

// For --universal-checkpoint with only ordinary checkpoints there: converts the newest intact one.
std::vector<std::string> make_universal(const fs::path& load_dir, const LoadOptions& options) {
  if (!fs::exists(load_dir / kLatestFile) || fs::exists(load_dir / kLatestUniversalFile)) return {};
  LoadableTags found = find_loadable_tags(load_dir, {.fallback = options.fallback});
  std::vector<std::string> lines = std::move(found.warnings);
  for (size_t i = 0;; ++i) {
    const std::string& tag = found.tags.at(i);
    const std::string universal = tag + std::string(kUniversalSuffix);
    try {
      const ConvertReport report =
          convert_to_universal({.input = load_dir / tag, .output = load_dir / universal}, {});
      lines.push_back(c10::str("no universal checkpoint in ", load_dir.string(), ": converted ",
                               tag, " to ", universal, " (", report.parameters, " parameters)"));
      return lines;
    } catch (const DamagedFile& error) {
      const auto manifest = read_manifest(load_dir / tag);
      if (i + 1 == found.tags.size() || !manifest ||
          (size_damage(load_dir / tag, manifest->files) +
           checksum_damage(load_dir / tag, manifest->files))
              .empty())
        throw;
      lines.push_back(falling_back(tag, error.what(), found.tags[i + 1]));
    }
  }
}

// Any rank's metadata describes the run: the files differ only in parameter shapes and ZeRO 0's
// optimizer. A node without a shared file system has only its own ranks' files.
fs::path metadata_file(const fs::path& folder, const ProcessGrid& grid) {
  const int mp_rank = grid.model->rank();
  for (const std::string& name :
       {zero3_model_states_file(0, 0), model_states_file(0),
        zero3_model_states_file(grid.coord.dp, mp_rank), model_states_file(mp_rank)})
    if (fs::exists(folder / name)) return folder / name;
  return existing(folder / model_states_file(0));
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

// `saved` is a scaler object, or FP16_Optimizer's dict with the same keys. An fp32 or bf16
// checkpoint does not record the scale that fp16 needs (DeepSpeed would continue with its 1).
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

// Refuses a full resume from a weights-only checkpoint.
void check_has_optimizer(const Value& metadata, const LoadOptions& options) {
  TORCH_CHECK(
      !metadata.find(keys::kWeightsOnly) || weights_only(options), metadata.where(),
      ": the checkpoint was saved without optimizer state (--no-save-optim): it cannot be "
      "resumed. --finetune starts at step 0 from its weights, --no-load-optim goes on at its "
      "step with fresh moments");
}

// Returns the steps that the optimizer made: those that the states have, or the run's, for an
// optimizer that counts none. Refuses a checkpoint that made steps but has no moments: it used
// another optimizer, such as SGD.
int64_t steps_made(const Value& metadata, int64_t in_states, const Optimizer& optimizer) {
  const int64_t made = metadata.find(keys::kGlobalSteps).value_or(0).as_int() -
                       metadata.find(keys::kSkippedSteps).value_or(0).as_int();
  if (in_states == 0 && !optimizer.counts_steps()) return made;
  TORCH_CHECK(in_states > 0 || made <= 0, metadata.where(), ": the run made ", made,
              " steps, but its optimizer has no state that ", optimizer.name(),
              " could go on with; --no-load-optim or --finetune load the weights alone");
  return in_states;
}

// Finds parameters that only the checkpoint or only the model has. Throws if the load is strict,
// else returns a line to print. Frozen parameters may be missing, with the limits of adapter.h.
// Collective.
std::string check_names(const Checkpoint& checkpoint, CheckpointedRun& run,
                        const LoadOptions& options) {
  std::vector<std::string> mine;
  for (const ParamSpec& spec : run.stage.params())
    mine.insert(mine.end(), {spec.name, spec.other_name,
                             spec.frozen() ? "frozen"
                             : spec.buffer ? "buffer"
                                           : "trained"});
  const std::vector<std::string> all = gather_lines(*run.grid.pp, mine);
  std::set<std::string> known, missing, excluded, unexpected;
  bool has_trained = false;
  for (size_t i = 0; i < all.size(); i += 3) {
    const std::string &name = all[i], &other = all[i + 1], &kind = all[i + 2];
    const bool found = checkpoint.contains(name) || checkpoint.contains(other);
    known.insert({name, other});
    if (!found) (kind == "frozen" ? excluded : missing).insert(name);
    has_trained |= found && kind == "trained";
  }
  for (const std::string& name : checkpoint.names())
    if (!known.contains(name)) unexpected.insert(name);
  const bool trains_adapter = !run.config.model.adapter_flags.empty();
  if (trains_adapter) {
    throw_together(*run.grid.world,
                   adapter_refusal(checkpoint, run, options, has_trained, excluded));
    if (!has_trained) missing.clear();  // they begin here
  }
  run.base_loaded |= excluded.empty();
  std::string text;
  if (!missing.empty()) text += "\n  missing in the checkpoint: " + c10::Join(", ", missing);
  if (!unexpected.empty())
    text += "\n  unexpected, not in this model: " + c10::Join(", ", unexpected);
  const std::string kept = trains_adapter ? adapter_note(has_trained, excluded)
                           : excluded.empty()
                               ? ""
                               : "frozen parameters that the checkpoint leaves out keep the values "
                                 "they have: " +
                                     c10::Join(", ", excluded);
  if (!text.empty())
    text = checkpoint.path.string() + ": its parameters are not this model's:" + text;
  // Nodes may have separate folders, so only some ranks may find a difference.
  const char* fix =
      "\nNothing was loaded. See the model's flags; --no-load-strict loads those that both have.";
  if (options.load_module_strict) throw_together(*run.grid.world, text.empty() ? "" : text + fix);
  if (text.empty()) return kept;
  return "WARNING: " + text +
         "\nMissing ones keep the values they start with, unexpected ones are left out "
         "(--no-load-strict)." +
         (kept.empty() ? "" : "\n" + kept);
}

LoadResult load_tag(const fs::path& load_dir, const fs::path& folder, CheckpointedRun& run,
                    const LoadOptions& options, TrainState& state) {
  Communicator& world = *run.grid.world;
  const bool has_manifest = check_files(world, folder, options.verify);
  RecordChecksums checks;
  Value metadata, scaler;
  OwnFiles own_files;
  read_together(world, folder, [&] {
    const fs::path file = metadata_file(folder, run.grid);
    metadata = read_torch_file(file, &checks);
    if (!options.custom_load_fn) check_same_model(metadata, run);
    check_has_adapter(metadata, folder, run, options);
    check_has_optimizer(metadata, options);
    if (!options.load_module_only && !options.allow_other_bits) check_same_bits(metadata, run);
    restore_schedule(metadata, options, run.config.schedule);
    const bool own_way = options.custom_load_fn != nullptr || weights_only(options);
    if (!fs::exists(folder / kZeroFolder) && !own_way)
      own_files = find_own_files(file, metadata, run, checks);
  });
  // All ranks take the same path, because its reports and checks are collective.
  const bool as_saved = max_over(world, own_files.model_states ? 0 : 1) == 0;
  if (!as_saved) own_files = {};
  OpenedForAll opened;
  Checkpoint& checkpoint = opened.checkpoint;
  if (!as_saved)
    opened = open_for_all(folder, run, weights_only(options),
                          /*by_itself=*/options.custom_load_fn != nullptr, checks);
  read_together(world, folder, [&] {
    if (!as_saved && !weights_only(options))
      require_states(folder, checkpoint.states_refused,
                     "--no-load-optim or --finetune load the weights alone");
  });
  run.base_loaded |= as_saved;
  const std::string names =
      as_saved || options.custom_load_fn ? "" : check_names(checkpoint, run, options);
  const Value& torch = as_saved ? own_files.optimizer : checkpoint.optimizer_state;
  std::vector<std::string> fresh;
  StepsRead steps;
  read_together(world, folder, [&] {
    if (!weights_only(options) && !opened.by_another) check_same_optimizer(metadata, torch, run);
    if (as_saved) {
      scaler = load_own_files(folder, own_files, run, checks, steps);
    } else {
      try {
        fresh = load_whole_tensors(checkpoint, run, weights_only(options), options.custom_load_fn,
                                   checks, steps);
      } catch (
          const DamagedFile&) {  // say, files that disagree; if one is damaged, finish() throws
        checks.finish(1);
        throw;
      }
      if (checkpoint.optimizer_state) scaler = checkpoint.optimizer_state.find(keys::kLossScaler);
    }
  });
  finish_checks(world, folder, checks);
  std::string with_fresh;
  if (!weights_only(options)) {
    run.optimizer.steps =
        steps_made(metadata, common_step(world, steps, folder), run.optimizer.optimizer());
    all_or_none(world, [&] { check_second_moments(run.optimizer, folder); });
    with_fresh = announce_fresh(run, fresh,
                                options.allow_fresh_moments || !options.load_module_strict ||
                                    options.custom_load_fn != nullptr);
  }
  run.optimizer.params_from_masters();
  restore_state(metadata, options, state);

  LoadResult result{.path = folder};
  const Value own = model_states(run, state, {});
  std::string newer;
  read_together(world, folder, [&] {
    result.client_state = clone_tensors_for_torch_save(client_state_of(metadata, own));
    if (world.rank() == 0) newer = announce_newer(load_dir, folder, metadata, options);
  });
  const auto say = [&result](std::string line) {
    if (!line.empty()) result.report.push_back(std::move(line));
  };
  if (options.verify && !has_manifest)
    say(c10::str("WARNING: ", folder.string(), " has no ", kManifestFile,
                 " to verify it by (--verify-checkpoint): only the bytes read have been checked"));
  say(checks.note());
  say(announce_fused_order(metadata));
  say(announce_names(checkpoint, run));
  if (!options.load_module_only)
    for (std::string& line : announce_settings(metadata, run)) say(std::move(line));
  if (!weights_only(options))
    for (std::string& line : announce_hyperparameters(torch, run)) say(std::move(line));
  say(names);
  say(with_fresh);
  if (!weights_only(options)) say(restore_scaler(scaler, state.scaler));
  if (!options.load_module_only) say(announce_batch_size(metadata, run));
  say(newer);
  say(c10::str("loaded ", folder.string(), weights_only(options) ? " (weights only)" : "",
               as_saved || options.universal ? "" : ", resharding it to this mesh", ": iteration ",
               state.iteration, ", ", state.consumed_train_samples,
               " samples consumed, learning rate ",
               run.config.schedule.at(static_cast<double>(state.scheduled_samples))));
  return result;
}

}  // namespace

LoadResult load_checkpoint(const fs::path& load_dir, CheckpointedRun& run, const LoadOptions& asked,
                           TrainState& state) {
  c10::NoGradGuard no_grad;
  Communicator& world = *run.grid.world;
  std::vector<std::string> lines;
  LoadableTags found;
  LoadOptions options = asked;
  const auto look = [&] { found = find_loadable_tags(load_dir, options); };
  bool own = false;  // saved by a run that began with another framework's folder, there
  all_or_none(world, [&] {
    if (world.rank() != 0) return;
    const bool foreign = options.tag.empty() && is_foreign(load_dir);
    own = foreign && fs::exists(load_dir / kLatestFile);
    if (foreign && !own)
      lines = import_foreign(load_dir, options);
    else if (options.universal && options.tag.empty() && !own)
      lines = make_universal(load_dir, options);
  });
  if (max_over(world, own) > 0) options.universal = false;
  all_or_none(world, [&] {
    if (world.rank() == 0) look();
  });
  std::vector<std::string> tags = gather_lines(world, found.tags);  // only rank 0 has any
  if (tags.empty()) {  // its node may have lost its disk: take the next rank's
    all_or_none(world, look);
    const int64_t first =
        world.size() - max_over(world, found.tags.empty() ? 0 : world.size() - world.rank());
    if (first != world.rank()) found = {};
    tags = gather_lines(world, found.tags);
  }
  lines.insert(lines.end(), found.warnings.begin(), found.warnings.end());
  if (tags.empty()) return {.report = {nothing_in(load_dir, options.universal)}};
  std::string damage;
  for (size_t i = 0; i < tags.size(); ++i) {
    try {
      LoadResult result = load_tag(load_dir, load_dir / tags[i], run, options, state);
      result.report.insert(result.report.begin(), lines.begin(), lines.end());
      return result;
    } catch (const DamagedCheckpoint& error) {
      damage = error.what();
      if (i + 1 < tags.size()) lines.push_back(falling_back(tags[i], damage, tags[i + 1]));
    }
  }
  std::string before;
  for (const std::string& line : lines) before += line + "\n";
  const char* why = !options.tag.empty() ? "no other is tried for a tag that was named (--load-tag)"
                    : options.fallback   ? "no other checkpoint to fall back to"
                                         : "not falling back (--no-fallback)";
  throw CollectiveError(before + damage + ". " + load_dir.string() + ": " + why +
                        ". No checkpoint was loaded.");
}

}  // namespace anymesh
