#include "framework/format/reshard/reshard.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iterator>

#include "framework/format/checkpoint/model.h"
#include "framework/format/folder/kinds.h"
#include "framework/format/io/file_io.h"
#include "framework/format/reshard/beside.h"
#include "framework/format/reshard/model_files.h"
#include "framework/format/reshard/uncut_model.h"
#include "framework/format/sharded/source_files.h"
#include "framework/format/torch_file/record_checksums.h"
#include "framework/format/torch_file/torch_file.h"
#include "framework/util/errors.h"
#include "framework/util/stopwatch.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

// The source as it is read, and its ranks as they shall be.
struct Source {
  std::vector<Value> model_states;
  Value optimizer_state;
  std::vector<RankModel> ranks = {};       // none if only the number of dp ranks of ZeRO 0 changes
  ExpertSpread experts = {};               // as the target spreads them
  std::vector<fs::path> layer_files = {};  // to be copied
  NamedFiles layers = {};                  // in another precision
};

[[noreturn]] void refuse_weights(const fs::path& input) {
  throw UserError(input.string() + ": holds weights only, and no optimizer's state to cut");
}

// Counts the parameters of a checkpoint that is copied as it is. Throws unless they are complete.
void count_parameters(const ShardedCheckpoint& source, ReshardReport& report) {
  for (const auto& [name, shards] : source.parameters) {
    for (const ParameterShard& shard : shards) {
      check_covered(name, shard, std::string(kFp32State));
      ++report.parameters;
      report.elements += numel(shard.shape);
    }
  }
}

Source open_ordinary(const ReshardOptions& options, const fs::path& input, RecordChecksums& checks,
                     ReshardReport& report) {
  const auto saved = std::make_shared<const ShardedCheckpoint>(
      open_sharded_checkpoint(input, options.threads, &checks, options.assume_module_order));
  if (saved->weights_only) refuse_weights(input);
  Source source{saved->model_states, saved->optimizer_state};
  report.from = mesh_of(*saved);
  report.to = options.target.applied_to(report.from);
  source.experts = check_target(saved->model_states[0], is_partitioned(*saved), saved->experts,
                                report.from, report.to);
  const CheckpointMesh &from = report.from, &to = report.to;
  const bool uncut = needs_uncut_tensors(*saved, from, to), recast = from.dtype != to.dtype;
  if (!uncut && !recast)
    for (const auto& [key, path] : saved->layer_files) source.layer_files.push_back(path);
  if (from.stage == 0 && to.stage == 0 && !uncut && !recast && source.experts.layers.empty()) {
    count_parameters(*saved, report);
    return source;
  }
  require_states(input, saved->states_refused, "zero_to_fp32 exports the weights alone");
  if (saved->groups.size() != saved->model_states.size())
    throw Unreadable(input.string() + ": has no optimizer's state");
  check_hyperparameters(saved->optimizer_state.at(keys::kParamGroups), input);
  note_numbers(*saved, /*universal=*/false, report.notes);
  source.ranks = uncut ? remeshed(uncut_model(checkpoint_of(saved), saved.get()), to, report.notes)
                       : rank_models(*saved, to);
  if (!uncut && recast) source.layers = recast_layer_files(*saved, source.ranks, to.dtype);
  return source;
}

// Opens the input for the target. Fills in report.from and report.to.
Source open_source(const ReshardOptions& options, const fs::path& input, RecordChecksums& checks,
                   ReshardReport& report) {
  const Checkpoint::Kind kind = checkpoint_kind(input);
  if (kind == Checkpoint::Kind::kWeights) refuse_weights(input);
  if (kind == Checkpoint::Kind::kOrdinary) return open_ordinary(options, input, checks, report);
  const UncutModel model = uncut_model(open_checkpoint(input, options.threads, &checks), nullptr);
  Source source{model.checkpoint.model_states, model.checkpoint.optimizer_state};
  report.from = model.mesh;
  report.to = options.target.applied_to(report.from);
  source.experts = check_target(source.model_states[0], /*partitioned=*/false,
                                ExpertSpread::from(source.model_states), report.from, report.to);
  source.ranks = remeshed(model, report.to, report.notes);
  return source;
}

// Returns the loss scaler that DeepSpeed starts fp16 with, by the config.
Value new_scaler(const Value& config, DType dtype) {
  const auto entry = [&](std::string_view key, const Value& otherwise) {
    const Value found = config_entry(config, keys::kFp16, key);
    return is_single(found) || found.kind() == Value::Kind::kBool ? found : otherwise;
  };
  if (dtype != DType::kFloat16) return loss_scaler(1);
  if (const double fixed = entry("loss_scale", 0.0).as_double(); fixed != 0)
    return loss_scaler(fixed);
  const Value hysteresis = entry("hysteresis", 2);
  const double power = entry("initial_scale_power", 16).as_double();
  return dynamic_loss_scaler(
      {{keys::kCurScale, std::exp2(power)},
       {keys::kCurIter, 0},
       {keys::kLastOverflowIter, -1},
       {keys::kScaleFactor, 2.0},
       {keys::kScaleWindow, entry("loss_scale_window", 1000)},
       {keys::kMinScale, entry("min_loss_scale", 1)},
       {keys::kDelayedShift, hysteresis},
       {keys::kCurHysteresis, hysteresis},
       {keys::kConsecutiveHysteresis, entry("consecutive_hysteresis", false)},
       {keys::kRaiseErrorAtMinScale, true},
       {keys::kDynamic, true},
       {keys::kDtype, Value::dtype(DType::kFloat16)}});
}

// Returns what the optimizers of all ranks have in common, under the keys of ZeRO 1.
Value common_state(const Source& source, const ReshardReport& report, const Value& config) {
  const Value& state = source.optimizer_state;
  Value common = Value::dict();
  // Not all classes of ZeRO 0 and 3 keep the clipping, which the config has for all of them.
  const Value clip = config.is_dict() ? config.find(keys::kGradientClipping) : Value();
  const Value known = is_single(clip) ? Value(clip.as_double()) : state.find(keys::kClipGrad);
  if (known) common.set(keys::kClipGrad, known);  // else the next job's own
  common.set(keys::kOverflow, state.find(keys::kOverflow).value_or(false));
  const Value scaler = state.find(keys::kLossScaler);
  const bool keeps = report.from.dtype == report.to.dtype && scaler;
  common.set(keys::kLossScaler, keeps ? scaler : new_scaler(config, report.to.dtype));
  common.set(keys::kDynamicLossScale, common.at(keys::kLossScaler).at(keys::kDynamic));
  common.set(keys::kDsVersion,
             state.find(keys::kDsVersion).value_or(source.model_states[0].at(keys::kDsVersion)));
  if (const Value info = state.find(keys::kUniversalInfo)) common.set(keys::kUniversalInfo, info);
  return common;
}

// Adds the files of a rank.
void add_rank(NamedFiles& files, const RankModel& rank, const CheckpointMesh& to,
              const ExpertSpread& experts, const Value& config, const Value& common) {
  const auto add = [&](NamedFiles more) { std::ranges::move(more, std::back_inserter(files)); };
  const OptimizerFiles optimizer(rank, to, experts, config, common);
  const int mp = rank.pp_rank * to.tp_size + rank.tp_rank;
  for (const auto& [name, tensor] : rank.frozen)
    if (experts.is_expert(name))
      throw Unreadable(name + ": is frozen, and ds_reshard does not cut frozen experts");
  for (int ep = 0; !experts.layers.empty() && to.stage == 0 && ep < to.ep_size; ++ep)
    files.emplace_back(expert_optim_states_file(ep, mp),
                       Value::dict({{keys::kOptimizer, optimizer.whole_state(ep)}}));
  if (to.stage < 3) add(expert_files(experts, rank.experts, {}, rank.tp_rank));
  for (int dp = 0; dp < to.dp_size; ++dp) {
    if (dp == 0 || to.stage == 3)
      files.emplace_back(to.stage == 3 ? zero3_model_states_file(dp, mp) : model_states_file(mp),
                         model_states(rank, to, config, optimizer, dp));
    if (to.stage > 0)
      files.emplace_back(optim_states_file(dp, mp, to.dtype == DType::kBFloat16),
                         Value::dict({{keys::kOptimizerStateDict, optimizer.state(dp)},
                                      {keys::kDsConfig, config},
                                      {keys::kDsVersion, common.at(keys::kDsVersion)}}));
  }
  add(layer_files(rank.layers, rank.tp_rank));
}

// Returns the files of the output, except those that are copied.
NamedFiles files_of(const Source& source, ReshardReport& report) {
  const Value config = config_for(source.model_states[0].find(keys::kDsConfig), report.from,
                                  report.to, report.notes);
  NamedFiles files;
  if (source.ranks.empty()) {
    // ZeRO 0 has one optimizer, which every dp rank loads: only the number of ranks is new.
    for (Value state : source.model_states) {
      state.set(keys::kDpWorldSize, report.to.dp_size);
      if (state.contains(keys::kDsConfig)) state.set(keys::kDsConfig, config);
      files.emplace_back(model_states_file(static_cast<int>(files.size())), state);
    }
    return files;
  }
  const Value common = common_state(source, report, config);
  for (const RankModel& rank : source.ranks) {
    add_rank(files, rank, report.to, source.experts, config, common);
    for (const auto& [name, master] : rank.masters()) {
      ++report.parameters;
      report.elements += master.numel();
    }
  }
  files.insert(files.end(), source.layers.begin(), source.layers.end());
  return files;
}

uint64_t bytes_of(const std::vector<BesideFile>& files, const fs::path& folder) {
  uint64_t bytes = 0;
  for (const BesideFile& file : files) bytes += fs::file_size(folder / file.from);
  return bytes;
}

}  // namespace

ReshardReport reshard(const ReshardOptions& options, const ProgressCallback& progress) {
  const auto start = std::chrono::steady_clock::now();
  ReshardReport report;
  const fs::path input = resolve_tag(without_trailing_slash(options.input), "", &report.notes),
                 output = without_trailing_slash(options.output);
  expect_apart(input, output);
  RecordChecksums checks;
  const SourceFiles sources(input);
  const Source source = open_source(options, input, checks, report);
  if (std::string note = checks.note(); !note.empty()) report.notes.push_back(std::move(note));
  const auto ranks = [](const CheckpointMesh& mesh) {
    return mesh.tp_size * mesh.pp_size * mesh.dp_size;
  };
  std::error_code absent;
  const bool apart = !fs::equivalent(input.parent_path(), output.parent_path(), absent);
  std::vector<BesideFile> beside;
  if (apart) {
    beside = files_beside(input, ranks(report.from), ranks(report.to), report.notes);
    check_beside(FolderRecord(output.parent_path()), beside);
  }
  OutputFolder out(output, kOutputFlag, kTag, options.dry_run);
  std::vector<StreamedFile> files;
  for (const auto& [name, content] : files_of(source, report))
    files.push_back(streamed_torch_file(out.folder() / name, content));
  for (const fs::path& path : source.layer_files)
    files.push_back(streamed_copy(path, out.folder() / path.filename(), checks));
  out.expect(files, report, bytes_of(beside, input.parent_path()));
  if (options.dry_run) return report;
  std::optional<FolderRecord> record;  // with a lock: a run for another tag writes `latest` too
  if (apart) check_beside(record.emplace(output.parent_path(), kOutputFlag), beside);
  report.kept = out.stream(files, options.threads, checks, progress).kept;
  sources.expect_unchanged();
  out.publish(source.model_states[0].find(keys::kGlobalSteps).value_or(0).as_int());
  if (apart) report.beside = write_beside(input, output, beside, *record);
  report.seconds = seconds_since(start);
  return report;
}

}  // namespace anymesh
