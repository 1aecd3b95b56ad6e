#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstdio>

#include "framework/checkpoint/checkpoint.h"
#include "framework/checkpoint/format/file_io.h"
#include "framework/checkpoint/format/names.h"
#include "framework/checkpoint/format/torch_file.h"
#include "framework/checkpoint/metadata.h"
#include "framework/checkpoint/model_files.h"
#include "framework/checkpoint/tensor_io.h"
#include "framework/checkpoint/zero_to_fp32_script.h"
#include "framework/comm/agreement.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;
using Group = ZeroOptimizer::Group;
using Piece = ZeroOptimizer::Piece;

Value step_value(const ZeroOptimizer& optimizer) {
  return record_of(torch::full({}, static_cast<double>(optimizer.steps), torch::kFloat));
}

std::vector<StateTensor> masters(const Group& group) {
  std::vector<StateTensor> pieces;
  for (const Piece& piece : group.pieces) pieces.push_back(piece.master);
  return pieces;
}

// torch.optim.AdamW's and Megatron's keys.
Value param_group(const CheckpointedRun& run, const TrainState& state, const Group& group,
                  std::vector<Value> params) {
  const ZeroOptions& options = run.optimizer.options();
  const bool decays = group.weight_decay != 0;
  return Value::dict({{"name", decays ? "wd_no_scale_lr" : "no_wd_no_scale_lr"},
                      {"wd_mult", decays ? 1.0 : 0.0},
                      {"lr_mult", 1.0},
                      {"lr", run.schedule.at(static_cast<double>(state.scheduled_samples))},
                      {"betas", Value::tuple({options.adam.beta1, options.adam.beta2})},
                      {"eps", options.adam.eps},
                      {"weight_decay", group.weight_decay},
                      {"amsgrad", false},
                      {"maximize", false},
                      {"foreach", {}},
                      {"capturable", false},
                      {"differentiable", false},
                      {"fused", {}},
                      {"decoupled_weight_decay", true},
                      {"params", Value::list(std::move(params))}});
}

// Stages >= 1: one state entry per group, this rank's partition of it, padding included.
Value partitioned_adam_state(const CheckpointedRun& run, const TrainState& state) {
  std::vector<Value::Entry> states;
  std::vector<Value> groups;
  for (const Group& group : run.optimizer.groups()) {
    const auto i = static_cast<int64_t>(groups.size());
    states.emplace_back(i, Value::dict({{kStepState, step_value(run.optimizer)},
                                        {kExpAvgState, record_of(group.exp_avg)},
                                        {kExpAvgSqState, record_of(group.exp_avg_sq)}}));
    groups.push_back(param_group(run, state, group, {i}));
  }
  return Value::dict({{keys::kState, Value::dict(std::move(states))},
                      {keys::kParamGroups, Value::list(std::move(groups))}});
}

// Stage 0, fp32: torch's own form, one state entry per parameter; the weights are the masters.
Value whole_adam_state(const CheckpointedRun& run, const TrainState& state) {
  std::vector<Value::Entry> states;
  std::vector<Value> groups;
  for (const Group& group : run.optimizer.groups()) {
    std::vector<Value> indices;
    for (const Piece& piece : group.pieces) {
      const auto i = static_cast<int64_t>(states.size());
      const auto shape = group.params[piece.param].tensor.sizes();
      states.emplace_back(
          i, Value::dict({{kStepState, step_value(run.optimizer)},
                          {kExpAvgState, record_of(piece.exp_avg.tensor().view(shape))},
                          {kExpAvgSqState, record_of(piece.exp_avg_sq.tensor().view(shape))}}));
      indices.emplace_back(i);
    }
    groups.push_back(param_group(run, state, group, std::move(indices)));
  }
  return Value::dict({{keys::kState, Value::dict(std::move(states))},
                      {keys::kParamGroups, Value::list(std::move(groups))}});
}

Value scaler_value(const LossScaler& s) {
  if (!s.dynamic) return loss_scaler(s.scale);
  return dynamic_loss_scaler({{keys::kCurScale, s.scale},
                              {keys::kDynamic, true},
                              {keys::kCurIter, s.iteration},
                              {keys::kLastOverflowIter, s.last_overflow},
                              {keys::kScaleFactor, 2.0},
                              {keys::kScaleWindow, s.window},
                              {keys::kMinScale, s.min_scale},
                              {keys::kDelayedShift, s.hysteresis},
                              {keys::kCurHysteresis, s.hysteresis_left},
                              {keys::kConsecutiveHysteresis, false},
                              {keys::kRaiseErrorAtMinScale, true},
                              {keys::kDtype, Value::dtype(DType::kFloat16)}});
}

// What the model-states file holds at stage 0: DeepSpeed's fused FP16_Optimizer for half precision,
// torch's own state for fp32.
Value stage0_optimizer(const CheckpointedRun& run, const TrainState& state) {
  if (run.dtype == torch::kFloat) return whole_adam_state(run, state);
  std::vector<Value> flat;
  for (const Group& group : run.optimizer.groups())
    flat.emplace_back(record_of(masters(group), torch::kFloat));
  Value optimizer = Value::dict({{keys::kDynamicLossScale, state.scaler.dynamic},
                                 {keys::kCurScale, state.scaler.scale},
                                 {keys::kCurIter, state.iteration},
                                 {keys::kOptimizerStateDict, partitioned_adam_state(run, state)},
                                 {keys::kFp32GroupsFlat, Value::list(std::move(flat))},
                                 {keys::kClipGrad, run.optimizer.options().clip_grad}});
  if (!state.scaler.dynamic) return optimizer;
  // FP16_Optimizer has the first three of them; a scaler's others are ours to keep.
  const Value scaler = scaler_value(state.scaler);
  for (const auto key :
       {keys::kLastOverflowIter, keys::kScaleFactor, keys::kScaleWindow, keys::kCurIter,
        keys::kMinScale, keys::kDelayedShift, keys::kCurHysteresis})
    optimizer.set(key, scaler.at(key));
  return optimizer;
}

// Stages 1 and 2: DeepSpeedZeroOptimizer.state_dict(). Masters without padding, moments with it.
Value optim_states(const CheckpointedRun& run, const TrainState& state) {
  const int dp = run.grid.topology.dp_size, rank = run.grid.coord.dp;
  std::vector<Value> fp32, paddings, alignment, counts, mappings;
  for (const Group& group : run.optimizer.groups()) {
    fp32.emplace_back(record_of(masters(group), torch::kFloat));
    paddings.emplace_back(group.layout.flat().padding(rank));
    alignment.push_back(Value::list(std::vector<Value>(group.params.size(), 0)));
    counts.emplace_back(dp);
    std::vector<Value::Entry> fragments;
    for (const Fragment& f : group.layout.fragments(rank)) {
      fragments.emplace_back(group.params[f.param].name,
                             fragment_address(f.numel, f.partition_start));
    }
    mappings.push_back(Value::ordered_dict(std::move(fragments)));
  }
  const Value optimizer =
      Value::dict({{keys::kLossScaler, scaler_value(state.scaler)},
                   {keys::kDynamicLossScale, state.scaler.dynamic},
                   {keys::kOverflow, false},
                   {keys::kClipGrad, run.optimizer.options().clip_grad},
                   {keys::kBaseOptimizerState, partitioned_adam_state(run, state)},
                   {keys::kFp32Groups, Value::list(std::move(fp32))},
                   {keys::kZeroStage, zero_stage_enum(run.optimizer.options().stage)},
                   {keys::kGroupPaddings, Value::list(std::move(paddings))},
                   {keys::kParamAlignmentPaddings, Value::list(std::move(alignment))},
                   {keys::kPartitionCount, Value::list(std::move(counts))},
                   {keys::kDsVersion, kWrittenLikeDeepSpeed},
                   {keys::kParamSliceMappings, Value::list(std::move(mappings))}});
  return Value::dict({{keys::kOptimizerStateDict, optimizer},
                      {keys::kDsConfig, deepspeed_config(run)},
                      {keys::kDsVersion, kWrittenLikeDeepSpeed}});
}

// Stage 3: DeepSpeedZeroOptimizer_Stage3's, one sub-group per parameter group, padding included.
Value stage3_optim_states(const CheckpointedRun& run, const TrainState& state) {
  std::vector<Value> fp32;
  for (const Group& group : run.optimizer.groups()) {
    fp32.emplace_back(record_of(group.master.defined() ? group.master : group.weights));
  }
  const Value optimizer =
      Value::dict({{keys::kZeroStage, zero_stage_enum(3)},
                   {keys::kLossScaler, scaler_value(state.scaler)},
                   {keys::kDynamicLossScale, state.scaler.dynamic},
                   {keys::kOverflow, false},
                   {keys::kPartitionCount, run.grid.topology.dp_size},
                   {keys::kOptimizerStateDict, partitioned_adam_state(run, state)},
                   {keys::kFp32FlatGroups, Value::list(std::move(fp32))}});
  return Value::dict({{keys::kOptimizerStateDict, optimizer},
                      {keys::kDsConfig, deepspeed_config(run)},
                      {keys::kDsVersion, kWrittenLikeDeepSpeed}});
}

void write_files(const CheckpointedRun& run, const TrainState& state, const SaveOptions& options,
                 Value metadata, const WriteFile& write) {
  if (options.weights_only) return write_weights_only(run, options, std::move(metadata), write);
  const Coord& at = run.grid.coord;
  const int mp_rank = at.pp * run.grid.topology.tp_size + at.tp;
  const int stage = run.optimizer.options().stage;
  const std::string optimizer_file =
      optim_states_file(at.dp, mp_rank, run.dtype == torch::kBFloat16);
  if (stage == 0) metadata.set(keys::kOptimizer, stage0_optimizer(run, state));
  if (stage == 3 || at.dp == 0) write_model_states(run, options, std::move(metadata), write);
  if (stage == 3) write(optimizer_file, stage3_optim_states(run, state));
  if (stage == 1 || stage == 2) write(optimizer_file, optim_states(run, state));
}

// Beside the tags of a partitioned optimizer, as DeepSpeed leaves it. Never replaced: it may be the user's.
void write_zero_to_fp32(const fs::path& save_dir) {
  const fs::path script = save_dir / kZeroToFp32File;
  if (fs::exists(script)) return;
  write_text_atomically(script, kZeroToFp32Script);
  fs::permissions(script, fs::perms::owner_exec | fs::perms::group_exec | fs::perms::others_exec,
                  fs::perm_options::add);
}

std::string place_of(const CheckpointedRun& run, int rank) {
  const Coord at = run.grid.topology.coord_of(rank);
  return c10::str("rank ", rank, " (pp ", at.pp, ", dp ", at.dp, ", tp ", at.tp, ")");
}

void expect_all_ranks(const CheckpointedRun& run, const char* what) {
  std::string absent;
  for (const int rank : run.grid.world->roll_call(run.patience))
    absent += (absent.empty() ? "" : ", ") + place_of(run, rank);
  TORCH_CHECK(absent.empty(), what, ": ", absent, " did not call it within ", run.patience.count(),
              " s of the others; every rank must. Nothing was written. ",
              "(--distributed-timeout-minutes sets how long ranks wait)");
}

// Rank 0's tag, which the others should have too.
std::string agreed_tag(const CheckpointedRun& run, const SaveOptions& options, int64_t iteration) {
  const std::string mine = options.tag.empty() ? tag_folder(iteration) : options.tag;
  const std::vector<std::string> tags = gather_strings(*run.grid.world, mine);
  const auto other = std::find_if(tags.begin(), tags.end(),
                                  [&](const std::string& tag) { return tag != tags[0]; });
  if (other != tags.end() && run.tag_validation != TagValidation::Ignore) {
    const std::string text =
        c10::str("save_checkpoint: tags differ: rank 0 has '", tags[0], "', ",
                 place_of(run, static_cast<int>(other - tags.begin())), " has '", *other, "'");
    if (run.tag_validation == TagValidation::Fail)
      throw CollectiveError(text + " (checkpoint.tag_validation is Fail). Nothing was written.");
    if (run.grid.world->rank() == 0)
      std::fprintf(stderr, "WARNING: %s; rank 0's is used\n", text.c_str());
  }
  const std::string& tag = tags[0];
  const bool is_name = tag != "." && tag != ".." && tag.find_first_of("/\n\r") == std::string::npos;
  if (!is_name || std::isspace(static_cast<unsigned char>(tag.back())))
    throw CollectiveError("save_checkpoint: tag '" + tag +
                          "' is not the name of a folder in save_dir (no /, no space at its end)");
  return tag;
}

void add_client_state(Value& metadata, const Value& client_state) {
  if (!client_state) return;
  for (const auto& [key, value] : client_state.entries()) {
    TORCH_CHECK(key.is_string(), "client_state: the key ", key.found(), " is not a string");
    TORCH_CHECK(!metadata.contains(key.as_string()), "client_state: the key ", key.found(),
                " is the checkpoint's own; take another");
    metadata.set(key.as_string(), value);
  }
}

// Temporary folders are what interrupted saves left.
void remove_leftovers(const fs::path& save_dir) {
  for (const fs::directory_entry& entry : fs::directory_iterator(save_dir)) {
    if (entry.is_directory() && entry.path().extension() == kTemporarySuffix)
      fs::remove_all(entry.path());
  }
}

}  // namespace

fs::path save_checkpoint(const fs::path& save_dir, const CheckpointedRun& run,
                         const TrainState& state, const SaveOptions& options) {
  Communicator& world = *run.grid.world;
  expect_all_ranks(run, "save_checkpoint");
  const std::string tag = agreed_tag(run, options, state.iteration);
  const fs::path folder = save_dir / tag,
                 temporary = save_dir / (tag + std::string(kTemporarySuffix));
  Value metadata = model_states(run, state);
  all_or_none(world, [&] { add_client_state(metadata, options.client_state); });
  all_or_none(world, [&] {
    if (world.rank() != 0) return;
    fs::create_directories(save_dir);
    remove_leftovers(save_dir);
    fs::create_directory(temporary);
  });
  const WriteFile write = [&](const std::string& name, const Value& value) {
    write_torch_file(temporary / name, value);
    sync_file(temporary / name);
  };
  all_or_none(world, [&] { write_files(run, state, options, metadata, write); });
  if (options.save_16bit_model) write_whole_model(run, options, write);
  all_or_none(world, [&] {
    if (world.rank() != 0) return;
    publish_folder(temporary, folder);
    if (run.optimizer.options().stage > 0 && !options.weights_only) write_zero_to_fp32(save_dir);
    if (options.save_latest) write_text_atomically(save_dir / kLatestFile, tag);
  });
  return folder;
}

fs::path save_16bit_model(const fs::path& save_dir, const std::string& save_filename,
                          const CheckpointedRun& run, bool exclude_frozen_parameters) {
  Communicator& world = *run.grid.world;
  expect_all_ranks(run, "save_16bit_model");
  const fs::path path = save_dir / save_filename,
                 beside = path.string() + std::string(kTemporarySuffix);
  all_or_none(world, [&] {
    if (world.rank() == 0) fs::create_directories(save_dir);
  });
  write_whole_model(run, {.exclude_frozen_parameters = exclude_frozen_parameters},
                    [&](const std::string&, const Value& model) {
                      write_torch_file(beside, model);
                      sync_file(beside);
                      rename_durably(beside, path);
                    });
  return path;
}

SaveSize save_size(const CheckpointedRun& run, const TrainState& state,
                   const SaveOptions& options) {
  Value metadata = model_states(run, state);
  constexpr int64_t kWholeModel = 4;  // after the kinds that have a rank in their names
  torch::Tensor counts = torch::zeros({5, 2}, torch::kLong);  // [kind, files and bytes]
  const WriteFile count = [&](const std::string& name, const Value& value) {
    const auto file = parse_checkpoint_file_name(name);
    torch::Tensor kind = counts[file ? static_cast<int64_t>(file->kind) : kWholeModel];
    kind[0] += 1;
    kind[1] += static_cast<int64_t>(torch_file_size(value));
  };
  all_or_none(*run.grid.world, [&] { add_client_state(metadata, options.client_state); });
  all_or_none(*run.grid.world, [&] { write_files(run, state, options, metadata, count); });
  if (options.save_16bit_model) write_whole_model(run, options, count);
  run.grid.world->all_reduce(counts);
  const auto row_of = [&counts](int64_t kind) {
    const torch::Tensor row = counts[kind];
    return SaveSize::Kind{row[0].item<int64_t>(), row[1].item<int64_t>()};
  };
  using Kind = CheckpointFileName::Kind;
  const auto of = [&](Kind kind) { return row_of(static_cast<int64_t>(kind)); };
  SaveSize size{of(Kind::kModelStates), of(Kind::kLayer), of(Kind::kOptimStates),
                row_of(kWholeModel)};
  const auto [files, bytes] = of(Kind::kZero3ModelStates);
  size.model_states.files += files;
  size.model_states.bytes += bytes;
  return size;
}

}  // namespace anymesh
