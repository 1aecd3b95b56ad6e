#include "framework/format/write/rank_files.h"

#include <algorithm>

#include "framework/format/layout/names.h"

namespace anymesh {
namespace {

Value masters_of(const std::vector<FlatState>& flats) {
  Value masters = Value::list();
  for (const FlatState& flat : flats) masters.push_back(flat.master);
  return masters;
}

}  // namespace

Value torch_state(const std::vector<TorchGroup>& groups) {
  std::vector<Value::Entry> states;
  Value settings = Value::list();
  int64_t index = 0;
  for (const TorchGroup& group : groups) {
    Value params = Value::list(), own = group.settings;
    for (const Value& state : group.states) {
      if (state) states.emplace_back(index, state);
      params.push_back(index++);
    }
    settings.push_back(own.set(keys::kParams, params));
  }
  return Value::dict(
      {{keys::kState, Value::dict(std::move(states))}, {keys::kParamGroups, settings}});
}

Value zero12_state(const Value& common, int stage, const Value& torch,
                   const std::vector<FlatState>& flats, bool is_bf16_optimizer) {
  Value paddings = Value::list(), gaps = Value::list(), counts = Value::list(),
        mappings = Value::list(), state = Value::dict();
  for (const FlatState& flat : flats) {
    paddings.push_back(flat.padding);
    gaps.push_back(Value::list_of(flat.gaps));
    counts.push_back(flat.place.edp_size);
    std::vector<Value::Entry> addresses;
    for (const auto& [name, fragment] : flat.fragments)
      addresses.emplace_back(name, fragment_address(fragment.numel, fragment.partition_start));
    mappings.push_back(Value::ordered_dict(std::move(addresses)));
  }
  if (!is_bf16_optimizer)
    for (const auto key : {keys::kLossScaler, keys::kDynamicLossScale, keys::kOverflow})
      state.set(key, common.at(key));
  if (const Value clip = common.find(keys::kClipGrad)) state.set(keys::kClipGrad, clip);
  state.set(keys::kBaseOptimizerState, torch).set(keys::kFp32Groups, masters_of(flats));
  if (!is_bf16_optimizer) state.set(keys::kZeroStage, zero_stage_enum(stage));
  state.set(keys::kGroupPaddings, paddings);
  if (!is_bf16_optimizer) state.set(keys::kParamAlignmentPaddings, gaps);
  return state.set(keys::kPartitionCount, counts)
      .set(keys::kDsVersion, common.at(keys::kDsVersion))
      .set(keys::kParamSliceMappings, mappings);
}

Value zero3_state(const Value& common, int dp_size, const Value& torch,
                  const std::vector<FlatState>& flats) {
  Value state = Value::dict({{keys::kZeroStage, zero_stage_enum(3)}});
  for (const auto key : {keys::kLossScaler, keys::kDynamicLossScale, keys::kOverflow})
    state.set(key, common.at(key));
  state.set(keys::kPartitionCount, dp_size)
      .set(keys::kOptimizerStateDict, torch)
      .set(keys::kFp32FlatGroups, masters_of(flats));
  if (std::ranges::none_of(flats, &FlatState::experts)) return state;
  Value groups = Value::list();  // AutoEP's list of the ranks that each sub-group is cut over
  for (size_t i = 0; i < flats.size(); ++i)
    groups.push_back(
        zero_partition_group(static_cast<int64_t>(i), flats[i].experts, flats[i].place));
  return state.set(keys::kZeroPartitionGroups, groups);
}

Value dynamic_loss_scaler_of(const Value& given) {
  std::vector<Value::Entry> fields{{keys::kCurScale, given.at(keys::kCurScale)},
                                   {keys::kDynamic, true},
                                   {keys::kCurIter, 0},
                                   {keys::kLastOverflowIter, -1},
                                   {keys::kScaleFactor, 2.0},
                                   {keys::kScaleWindow, 1000},
                                   {keys::kMinScale, 1.0},
                                   {keys::kDelayedShift, 1},
                                   {keys::kCurHysteresis, 1},
                                   {keys::kConsecutiveHysteresis, false},
                                   {keys::kRaiseErrorAtMinScale, true},
                                   {keys::kDtype, Value::dtype(DType::kFloat16)}};
  for (auto& [key, value] : fields) value = given.find(key.as_string()).value_or(value);
  return dynamic_loss_scaler(std::move(fields));
}

NamedFiles layer_files(const std::map<int, NamedTensors>& layers, int tp_rank) {
  NamedFiles files;
  for (const auto& [layer, tensors] : layers)
    files.emplace_back(layer_states_file(layer, tp_rank),
                       Value::ordered_dict({tensors.begin(), tensors.end()}));
  return files;
}

NamedFiles expert_files(const ExpertSpread& spread, const NamedTensors& stacked,
                        const ExpertSpread::Rank& rank, int tp_rank) {
  std::map<std::string, std::vector<Value::Entry>> files;
  for (const auto& [name, experts] : stacked) {
    for (int64_t e = 0; e < experts.shape[0]; ++e) {
      if ((spread.layer_number_of(name) + e) % rank.edp_size != rank.edp) continue;
      const int64_t expert = rank.ep * experts.shape[0] + e;
      files[spread.file_of(name, expert, tp_rank)].emplace_back(ExpertSpread::key_of(name, expert),
                                                                unstacked(experts, e));
    }
  }
  NamedFiles result;
  for (auto& [file, entries] : files)
    result.emplace_back(file, Value::ordered_dict(std::move(entries)));
  return result;
}

}  // namespace anymesh
