#include "framework/format/reshard/reshard.h"

#include <chrono>
#include <cmath>

#include "framework/format/checkpoint/model.h"
#include "framework/format/folder/kinds.h"
#include "framework/format/io/file_io.h"
#include "framework/format/reshard/beside.h"
#include "framework/format/reshard/model_files.h"
#include "framework/format/reshard/optimizer_files.h"
#include "framework/format/reshard/source.h"
#include "framework/format/sharded/source_files.h"
#include "framework/format/torch_file/record_checksums.h"
#include "framework/format/torch_file/torch_file.h"
#include "framework/util/errors.h"
#include "framework/util/stopwatch.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

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
Value common_state(const ReshardSource& source, const CheckpointMesh& to, const Value& config) {
  const Value& state = source.optimizer_state;
  Value common = Value::dict();
  // Not all classes of ZeRO 0 and 3 keep the clipping, which the config has for all of them.
  const Value clip = config.is_dict() ? config.find(keys::kGradientClipping) : Value();
  common.set(keys::kClipGrad,
             is_single(clip) ? Value(clip.as_double()) : state.find(keys::kClipGrad).value_or(0.0));
  common.set(keys::kOverflow, state.find(keys::kOverflow).value_or(false));
  const Value scaler = state.find(keys::kLossScaler);
  const bool keeps = source.mesh.dtype == to.dtype && scaler;
  common.set(keys::kLossScaler, keeps ? scaler : new_scaler(config, to.dtype));
  common.set(keys::kDynamicLossScale, common.at(keys::kLossScaler).at(keys::kDynamic));
  common.set(keys::kDsVersion,
             state.find(keys::kDsVersion).value_or(source.model_states[0].at(keys::kDsVersion)));
  if (const Value info = state.find(keys::kUniversalInfo)) common.set(keys::kUniversalInfo, info);
  return common;
}

// The files of an output folder, planned and not yet written.
class Plan {
 public:
  Plan(const ReshardSource& source, const fs::path& folder, const CheckpointMesh& to,
       RecordChecksums& checks, ReshardReport& report)
      : folder_(folder), to_(to), checks_(checks), report_(report), copies_(source.layer_files) {
    const Value config =
        config_for(source.model_states[0].find(keys::kDsConfig), source.mesh, to, report.notes);
    if (source.ranks.empty()) {
      for (size_t mp = 0; mp < source.model_states.size(); ++mp)
        add_unpartitioned(static_cast<int>(mp), source.model_states[mp], config);
      return;
    }
    const Value common = common_state(source, to, config);
    for (const RankModel& rank : source.ranks) add_rank(rank, source.experts, config, common);
    contents_.insert(contents_.end(), source.layers.begin(), source.layers.end());
  }

  std::vector<StreamedFile> files() const {
    std::vector<StreamedFile> files;
    for (const auto& [name, content] : contents_)
      files.push_back(streamed_torch_file(folder_ / name, content));
    for (const fs::path& path : copies_)
      files.push_back(streamed_copy(path, folder_ / path.filename(), checks_));
    return files;
  }

 private:
  void add_rank(const RankModel& rank, const ExpertSpread& experts, const Value& config,
                const Value& common) {
    const OptimizerFiles optimizer(rank, to_, experts, config, common);
    const bool spread = !experts.layers.empty();
    const OptimizerFacts facts{optimizer.param_shapes(),
                               to_.stage == 0 && !spread ? optimizer.whole_state() : Value(),
                               experts};
    const int mp = rank.pp_rank * to_.tp_size + rank.tp_rank;
    for (const auto& [name, tensor] : rank.frozen)
      if (experts.is_expert(name))
        throw Unreadable(name + ": is frozen, and ds_reshard does not cut frozen experts");
    for (int ep = 0; spread && to_.stage == 0 && ep < to_.ep_size; ++ep)
      contents_.emplace_back(expert_optim_states_file(ep, mp),
                             Value::dict({{keys::kOptimizer, optimizer.whole_state(ep)}}));
    if (to_.stage < 3) add_experts_files(rank, experts);
    for (int dp = 0; dp < to_.dp_size; ++dp) {
      if (dp == 0 || to_.stage == 3)
        contents_.emplace_back(
            to_.stage == 3 ? zero3_model_states_file(dp, mp) : model_states_file(mp),
            model_states(rank, to_, config, facts, dp));
      if (to_.stage > 0)
        contents_.emplace_back(optim_states_file(dp, mp, to_.dtype == DType::kBFloat16),
                               Value::dict({{keys::kOptimizerStateDict, optimizer.state(dp)},
                                            {keys::kDsConfig, config},
                                            {keys::kDsVersion, common.at(keys::kDsVersion)}}));
    }
    for (const auto& [layer, tensors] : rank.layers)
      contents_.emplace_back(layer_states_file(layer, rank.tp_rank),
                             Value::ordered_dict({tensors.begin(), tensors.end()}));
    for (const auto& group : rank.groups) {
      for (const auto& parameter : group.parameters) {
        ++report_.parameters;
        report_.elements += numel(parameter.shape);
      }
    }
  }

  // Adds a file for each expert that the rank has a part of.
  void add_experts_files(const RankModel& rank, const ExpertSpread& experts) {
    std::map<std::string, std::vector<Value::Entry>> files;
    for (const auto& [name, stacked] : rank.experts)
      for (int64_t e = 0; e < stacked.shape[0]; ++e)
        files[experts.file_of(name, e, rank.tp_rank)].emplace_back(ExpertSpread::key_of(name, e),
                                                                   unstacked(stacked, e));
    for (auto& [file, entries] : files)
      contents_.emplace_back(file, Value::ordered_dict(std::move(entries)));
  }

  // ZeRO 0 has one optimizer, which every dp rank loads: only the number of ranks is new.
  void add_unpartitioned(int mp, Value state, const Value& config) {
    state.set(keys::kDpWorldSize, to_.dp_size);
    if (state.contains(keys::kDsConfig)) state.set(keys::kDsConfig, config);
    contents_.emplace_back(model_states_file(mp), state);
  }

  fs::path folder_;
  CheckpointMesh to_;
  RecordChecksums& checks_;
  ReshardReport& report_;
  std::vector<std::pair<std::string, Value>> contents_;  // by file name
  std::vector<fs::path> copies_;
};

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
  const ReshardSource source = open_source(options, input, checks, report);
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
  const Plan plan(source, out.folder(), report.to, checks, report);
  const std::vector<StreamedFile> files = plan.files();
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
