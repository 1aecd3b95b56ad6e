#include "framework/checkpoint/save/optimizer_states.h"

#include "framework/checkpoint/expert_ranks.h"
#include "framework/checkpoint/metadata.h"
#include "framework/checkpoint/torch_bridge.h"
#include "framework/format/layout.h"
#include "framework/format/write.h"

namespace anymesh {
namespace {

using Group = ZeroOptimizer::Group;
using Piece = ZeroOptimizer::Piece;

// Returns this rank's masters of a group, without padding.
TensorRecord masters(const Group& group) {
  std::vector<StateTensor> pieces;
  for (const Piece& piece : group.pieces) pieces.push_back(piece.master);
  return record_of(pieces, group.gradient.scalar_type());
}

// A param_groups entry, with the keys of torch's optimizer and of Megatron.
Value param_group(const CheckpointedRun& run, const TrainState& state, const Group& group) {
  const bool decays = group.weight_decay != 0, experts = group.params[0].experts;
  Value settings =
      Value::dict({{keys::kGroupName, experts  ? ExpertSpread::group_name(run.grid.topology.ep_size)
                                      : decays ? "wd_no_scale_lr"
                                               : "no_wd_no_scale_lr"},
                   {"wd_mult", decays ? 1.0 : 0.0},
                   {"lr_mult", 1.0},
                   {"lr", group.optimizer->lr_scale() *
                              run.config.schedule.at(static_cast<double>(state.scheduled_samples))},
                   {"weight_decay", group.weight_decay}});
  for (const Optimizer::Setting& setting : group.optimizer->settings())
    settings.set(setting.key, setting.value);
  settings.set(keys::kOptimizerName, group.optimizer->name())
      .set(keys::kOptimizerVersion, group.optimizer->version())
      .set(keys::kParams, {});
  if (experts) settings.set(keys::kMoe, true);
  return settings;
}

// Returns one state entry per group: this rank's partition, padding included. With `by_parameter`
// it returns torch's own form: one entry per whole parameter.
Value torch_states(const CheckpointedRun& run, const TrainState& state, bool by_parameter) {
  const auto entry_of = [&](const Group& group, const auto& record_at) {
    const std::vector<std::string> names = group.optimizer->states();
    if (names.empty() && !group.optimizer->counts_steps()) return Value();
    const auto step = static_cast<double>(run.optimizer.steps);  // DeepSpeed's Lion needs it too
    Value states = Value::dict({{kStepState, record_of(torch::full({}, step, torch::kFloat))}});
    for (size_t i = 0; i < names.size(); ++i) states.set(names[i], record_at(i));
    return states;
  };
  std::vector<TorchGroup> groups;
  for (const Group& group : run.optimizer.groups()) {
    TorchGroup& own = groups.emplace_back(TorchGroup{param_group(run, state, group), {}});
    if (!by_parameter)
      own.states = {entry_of(group, [&](size_t i) { return record_of(group.states[i]); })};
    for (const Piece& piece : group.pieces) {
      const auto shape = group.params[piece.param].tensor.sizes();
      if (by_parameter)
        own.states.push_back(entry_of(
            group, [&](size_t i) { return record_of(piece.states[i].tensor().view(shape)); }));
    }
  }
  return torch_state(groups);
}

Value scaler_value(const LossScaler& s) {
  if (!s.dynamic) return loss_scaler(s.scale);
  return dynamic_loss_scaler_of(Value::dict({{keys::kCurScale, s.scale},
                                             {keys::kCurIter, s.iteration},
                                             {keys::kLastOverflowIter, s.last_overflow},
                                             {keys::kScaleWindow, s.window},
                                             {keys::kMinScale, s.min_scale},
                                             {keys::kDelayedShift, s.hysteresis},
                                             {keys::kCurHysteresis, s.hysteresis_left}}));
}

// The optimizer in the model-states file at stage 0: DeepSpeed's fused FP16_Optimizer for half
// precision, torch's own state for fp32.
Value stage0_optimizer(const CheckpointedRun& run, const TrainState& state) {
  if (run.dtype == torch::kFloat) return torch_states(run, state, /*by_parameter=*/true);
  Value groups = Value::list();
  for (const Group& group : run.optimizer.groups()) groups.push_back(masters(group));
  Value optimizer = Value::dict({{keys::kDynamicLossScale, state.scaler.dynamic},
                                 {keys::kCurScale, state.scaler.scale},
                                 {keys::kCurIter, state.iteration},
                                 {keys::kOptimizerStateDict, torch_states(run, state, false)},
                                 {keys::kFp32GroupsFlat, groups},
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

// Returns this rank's flat tensor of a group, which at ZeRO 3 is a sub-group. Moments have padding;
// masters have it at ZeRO 3 alone.
FlatState flat_state(const CheckpointedRun& run, const Group& group) {
  const int rank = group.partitions->rank(), ranks = group.partitions->size();
  FlatState flat{.experts = group.params[0].experts,
                 .place = {expert_rank(run).ep, rank, run.grid.topology.ep_size, ranks}};
  if (run.optimizer.stage().partitions_parameters()) {
    flat.master = record_of(group.master.defined() ? group.master : group.weights);
    return flat;
  }
  flat.master = masters(group);
  flat.padding = group.layout.flat().padding(rank);
  flat.gaps.resize(group.params.size());
  for (const Fragment& fragment : group.layout.fragments(rank))
    flat.fragments.emplace_back(group.params[fragment.param].name, fragment);
  return flat;
}

// The optimizer of stages 1 to 3, which the ranks cut among them.
Value cut_optimizer(const CheckpointedRun& run, const TrainState& state) {
  const Value common = Value::dict({{keys::kLossScaler, scaler_value(state.scaler)},
                                    {keys::kDynamicLossScale, state.scaler.dynamic},
                                    {keys::kOverflow, false},
                                    {keys::kClipGrad, run.optimizer.config().clip_grad},
                                    {keys::kDsVersion, kWrittenLikeDeepSpeed}}),
              torch = torch_states(run, state, /*by_parameter=*/false);
  std::vector<FlatState> flats;
  for (const Group& group : run.optimizer.groups()) flats.push_back(flat_state(run, group));
  const ZeroStage stage = run.optimizer.stage();
  return stage.partitions_parameters()
             ? zero3_state(common, run.grid.topology.dp_size, torch, flats)
             : zero12_state(common, stage.number(), torch, flats);
}

// Adds the states of whole parameters of this rank's stage.
void add_whole_states(const CheckpointedRun& run, Value& metadata) {
  Value all = Value::dict();
  for (const Group& group : run.optimizer.groups())
    for (size_t i = 0; i < group.params.size(); ++i) {
      Value own = Value::dict();
      const auto names = group.optimizer->whole_states(group.params[i].shape);
      for (size_t s = 0; s < names.size(); ++s)
        own.set(names[s].name, record_of(group.whole_states[i][s]));
      if (!names.empty()) all.set(group.params[i].name, own);
    }
  if (all.size() > 0) metadata.set(keys::kWholeStates, all);
}

// Returns the file of ZeRO 0's optimizer that this rank has to write, or nullopt if another rank
// writes that of its experts. The first dp rank with this ep rank does.
std::optional<std::string> optimizer_file_of_experts(const CheckpointedRun& run) {
  Coord before = run.grid.coord;
  const Topology& mesh = run.grid.topology;
  for (before.dp = 0; before.dp < run.grid.coord.dp; ++before.dp)
    if (mesh.ep_rank_of(before) == expert_rank(run).ep) return std::nullopt;
  return expert_optimizer_file(run);
}

}  // namespace

double write_rank_files(const CheckpointedRun& run, const TrainState& state,
                        const SaveOptions& options, Value metadata, const WriteFile& write) {
  if (options.weights_only) return write_weights_only(run, options, std::move(metadata), write);
  add_whole_states(run, metadata);
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
  write(optim_states_file(run.grid.coord.dp, run.grid.model->rank(), run.dtype == torch::kBFloat16),
        Value::dict({{keys::kOptimizerStateDict, cut_optimizer(run, state)},
                     {keys::kDsConfig, deepspeed_config(run)},
                     {keys::kDsVersion, kWrittenLikeDeepSpeed}}),
        kAlone);
  return 0;
}

}  // namespace anymesh
