#include "framework/checkpoint/save/optimizer_states.h"

#include "framework/checkpoint/expert_ranks.h"
#include "framework/checkpoint/metadata.h"
#include "framework/checkpoint/save/expert_files.h"
#include "framework/checkpoint/torch_bridge.h"
#include "framework/format/layout.h"

namespace anymesh {
namespace {

using Group = ZeroOptimizer::Group;
using Piece = ZeroOptimizer::Piece;

// Returns this rank's masters of each group, without padding.
Value masters(const ZeroOptimizer& optimizer) {
  std::vector<Value> groups;
  for (const Group& group : optimizer.groups()) {
    std::vector<StateTensor> pieces;
    for (const Piece& piece : group.pieces) pieces.push_back(piece.master);
    groups.emplace_back(record_of(pieces, group.exp_avg.dtype()));
  }
  return Value::list(std::move(groups));
}

// A param_groups entry, with the keys of torch.optim.AdamW and of Megatron.
Value param_group(const CheckpointedRun& run, const TrainState& state, const Group& group,
                  std::vector<Value> params) {
  const AdamOptions& adam = run.optimizer.config().adam;
  const bool decays = group.weight_decay != 0, experts = group.params[0].experts;
  Value settings =
      Value::dict({{keys::kGroupName, experts  ? ExpertSpread::group_name(run.grid.topology.ep_size)
                                      : decays ? "wd_no_scale_lr"
                                               : "no_wd_no_scale_lr"},
                   {"wd_mult", decays ? 1.0 : 0.0},
                   {"lr_mult", 1.0},
                   {"lr", run.config.schedule.at(static_cast<double>(state.scheduled_samples))},
                   {"betas", Value::tuple({adam.beta1, adam.beta2})},
                   {"eps", adam.eps},
                   {"weight_decay", group.weight_decay},
                   {"amsgrad", false},
                   {"maximize", false},
                   {"foreach", {}},
                   {"capturable", false},
                   {"differentiable", false},
                   {"fused", {}},
                   {"decoupled_weight_decay", true},
                   {keys::kOptimizerName, kAdamW},
                   {"params", Value::list(std::move(params))}});
  if (experts) settings.set(keys::kMoe, true);
  return settings;
}

// Returns one state entry per group: this rank's partition, padding included. With `by_parameter`
// it returns torch's own form: one entry per whole parameter.
Value adam_state(const CheckpointedRun& run, const TrainState& state, bool by_parameter) {
  std::vector<Value::Entry> states;
  std::vector<Value> groups, indices;
  const auto add = [&](const TensorRecord& exp_avg, const TensorRecord& exp_avg_sq) {
    const auto step = static_cast<double>(run.optimizer.steps);
    indices.emplace_back(static_cast<int64_t>(states.size()));
    states.emplace_back(indices.back(),
                        Value::dict({{kStepState, record_of(torch::full({}, step, torch::kFloat))},
                                     {kExpAvgState, exp_avg},
                                     {kExpAvgSqState, exp_avg_sq}}));
  };
  for (const Group& group : run.optimizer.groups()) {
    indices.clear();
    if (!by_parameter) add(record_of(group.exp_avg), record_of(group.exp_avg_sq));
    for (const Piece& piece : group.pieces) {
      const auto shape = group.params[piece.param].tensor.sizes();
      if (by_parameter)
        add(record_of(piece.exp_avg.tensor().view(shape)),
            record_of(piece.exp_avg_sq.tensor().view(shape)));
    }
    groups.push_back(param_group(run, state, group, indices));
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

// The optimizer in the model-states file at stage 0: DeepSpeed's fused FP16_Optimizer for half
// precision, torch's own state for fp32.
Value stage0_optimizer(const CheckpointedRun& run, const TrainState& state) {
  if (run.dtype == torch::kFloat) return adam_state(run, state, /*by_parameter=*/true);
  Value optimizer = Value::dict({{keys::kDynamicLossScale, state.scaler.dynamic},
                                 {keys::kCurScale, state.scaler.scale},
                                 {keys::kCurIter, state.iteration},
                                 {keys::kOptimizerStateDict, adam_state(run, state, false)},
                                 {keys::kFp32GroupsFlat, masters(run.optimizer)},
                                 {keys::kClipGrad, run.optimizer.config().clip_grad}});
  if (!state.scaler.dynamic) return optimizer;
  // FP16_Optimizer has the first three keys. We add the others, to keep the whole scaler.
  const Value scaler = scaler_value(state.scaler);
  for (const auto key :
       {keys::kLastOverflowIter, keys::kScaleFactor, keys::kScaleWindow, keys::kCurIter,
        keys::kMinScale, keys::kDelayedShift, keys::kCurHysteresis})
    optimizer.set(key, scaler.at(key));
  return optimizer;
}

// Stages 1 and 2: DeepSpeedZeroOptimizer.state_dict(). Masters have no padding, moments do.
Value stage12_optimizer(const CheckpointedRun& run, const TrainState& state) {
  std::vector<Value> counts, paddings, alignment, mappings;
  for (const Group& group : run.optimizer.groups()) {
    const int rank = group.partitions->rank();
    counts.emplace_back(group.partitions->size());
    paddings.emplace_back(group.layout.flat().padding(rank));
    alignment.push_back(Value::list(std::vector<Value>(group.params.size(), 0)));
    std::vector<Value::Entry> fragments;
    for (const Fragment& f : group.layout.fragments(rank)) {
      fragments.emplace_back(group.params[f.param].name,
                             fragment_address(f.numel, f.partition_start));
    }
    mappings.push_back(Value::ordered_dict(std::move(fragments)));
  }
  return Value::dict({{keys::kLossScaler, scaler_value(state.scaler)},
                      {keys::kDynamicLossScale, state.scaler.dynamic},
                      {keys::kOverflow, false},
                      {keys::kClipGrad, run.optimizer.config().clip_grad},
                      {keys::kBaseOptimizerState, adam_state(run, state, false)},
                      {keys::kFp32Groups, masters(run.optimizer)},
                      {keys::kZeroStage, zero_stage_enum(run.optimizer.stage().number())},
                      {keys::kGroupPaddings, Value::list(std::move(paddings))},
                      {keys::kParamAlignmentPaddings, Value::list(std::move(alignment))},
                      {keys::kPartitionCount, Value::list(std::move(counts))},
                      {keys::kDsVersion, kWrittenLikeDeepSpeed},
                      {keys::kParamSliceMappings, Value::list(std::move(mappings))}});
}

// Returns AutoEP's list of the ranks that each sub-group is cut over; None without experts.
Value partition_groups(const CheckpointedRun& run) {
  const auto& groups = run.optimizer.groups();
  if (groups.empty() || !groups.back().params[0].experts) return {};
  std::vector<Value> list;
  for (const Group& group : groups)
    list.push_back(zero_partition_group(static_cast<int64_t>(list.size()), group.params[0].experts,
                                        {expert_rank(run).ep, group.partitions->rank(),
                                         run.grid.topology.ep_size, group.partitions->size()}));
  return Value::list(std::move(list));
}

// Stage 3: DeepSpeedZeroOptimizer_Stage3's state, one sub-group per parameter group, with padding.
Value stage3_optimizer(const CheckpointedRun& run, const TrainState& state) {
  std::vector<Value> fp32;
  for (const Group& group : run.optimizer.groups())
    fp32.emplace_back(record_of(group.master.defined() ? group.master : group.weights));
  Value optimizer = Value::dict({{keys::kZeroStage, zero_stage_enum(3)},
                                 {keys::kLossScaler, scaler_value(state.scaler)},
                                 {keys::kDynamicLossScale, state.scaler.dynamic},
                                 {keys::kOverflow, false},
                                 {keys::kPartitionCount, run.grid.topology.dp_size},
                                 {keys::kOptimizerStateDict, adam_state(run, state, false)},
                                 {keys::kFp32FlatGroups, Value::list(std::move(fp32))}});
  if (const Value groups = partition_groups(run)) optimizer.set(keys::kZeroPartitionGroups, groups);
  return optimizer;
}

}  // namespace

double write_rank_files(const CheckpointedRun& run, const TrainState& state,
                        const SaveOptions& options, Value metadata, const WriteFile& write) {
  if (options.weights_only) return write_weights_only(run, options, std::move(metadata), write);
  const ZeroStage stage = run.optimizer.stage();
  if (!stage.partitions_optimizer()) {
    if (ExpertSpread::from(metadata).layers.empty()) {
      metadata.set(keys::kOptimizer, stage0_optimizer(run, state));
    } else if (const auto file = optimizer_file_of_experts(run)) {
      write(*file, Value::dict({{keys::kOptimizer, stage0_optimizer(run, state)}}), kAlone);
    }
  }
  write_model_states(run, options, std::move(metadata), write);
  if (!stage.partitions_optimizer()) return 0;
  const Value optimizer =
      stage.partitions_parameters() ? stage3_optimizer(run, state) : stage12_optimizer(run, state);
  write(optim_states_file(run.grid.coord.dp, run.grid.model->rank(), run.dtype == torch::kBFloat16),
        Value::dict({{keys::kOptimizerStateDict, optimizer},
                     {keys::kDsConfig, deepspeed_config(run)},
                     {keys::kDsVersion, kWrittenLikeDeepSpeed}}),
        kAlone);
  return 0;
}

}  // namespace anymesh
