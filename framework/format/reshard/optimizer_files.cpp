#include "framework/format/reshard/optimizer_files.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "framework/format/sharded/tensor_views.h"
#include "framework/util/errors.h"

namespace anymesh {
namespace {

using Group = RankModel::Group;
using Parameter = RankModel::Parameter;

constexpr int64_t kAlignedBytes = 16;              // parameter_alignment
constexpr int64_t kSubGroupSizeDefault = 1 << 30;  // DeepSpeed's 1e9, and none is that large

bool is_true(const Value& value) { return value.kind() == Value::Kind::kBool && value.as_bool(); }

BytesPtr zeros(uint64_t size) {
  return std::make_shared<ComputedBytes>(size, "padding", [](uint64_t, std::span<std::byte> out) {
    std::ranges::fill(out, std::byte{});
  });
}

DType dtype_of(const Group& group, std::string_view state) {
  const DType dtype = group.parameters[0].states.find(state)->second.dtype;
  for (const Parameter& parameter : group.parameters) {
    const auto found = parameter.states.find(state);
    if (found == parameter.states.end() || found->second.dtype != dtype)
      throw Unreadable(parameter.name + ": has no " + std::string(state) + " like " +
                       group.parameters[0].name + "'s, which is in the same group");
  }
  return dtype;
}

// Returns the elements of these fragments, one after the other, with zeros where there is none.
TensorRecord flat_tensor(const Group& group, std::string_view state,
                         const std::vector<Fragment>& fragments, int64_t numel) {
  const DType dtype = dtype_of(group, state);
  const uint64_t size = element_size(dtype);
  std::vector<ShardFragment> parts;
  int64_t next = 0;
  const auto pad = [&](int64_t end) {
    if (end > next)
      parts.push_back({0, next, end - next, zeros(static_cast<uint64_t>(end - next) * size)});
    next = std::max(next, end);
  };
  for (const Fragment& fragment : fragments) {
    pad(fragment.partition_start);
    const BytesPtr whole = group.parameters[fragment.param].states.find(state)->second.bytes;
    parts.push_back(
        {0, next, fragment.numel,
         std::make_shared<SubRange>(whole, static_cast<uint64_t>(fragment.param_start) * size,
                                    static_cast<uint64_t>(fragment.numel) * size)});
    next += fragment.numel;
  }
  pad(numel);
  return {dtype, {numel}, state == kFp32State, joined({numel}, std::move(parts), dtype)};
}

// Returns a state of whole parameters, those that have elements in the partition.
TensorRecord whole_parameters(const Group& group, std::string_view state,
                              const std::vector<Fragment>& fragments) {
  std::vector<Fragment> whole;
  int64_t end = 0;
  for (const Fragment& fragment : fragments) {
    whole.push_back({fragment.param, 0, end, numel(group.parameters[fragment.param].shape)});
    end += whole.back().numel;
  }
  return flat_tensor(group, state, whole, end);
}

// Returns a single number with memory of its own: torch's optimizers add to the step in place.
Value unshared(const Value& number) {
  if (!number.is_tensor()) return number;
  TensorRecord tensor = number.as_tensor();
  tensor.bytes = std::make_shared<SubRange>(tensor.bytes, 0, tensor.bytes->size());
  return tensor;
}

// Returns a state entry like the source's, with these tensors and this step.
Value entry_like(const Value& entry, const Parameter& parameter,
                 const std::function<TensorRecord(const std::string& state)>& tensor) {
  Value result = Value::dict();
  for (const auto& [key, value] : entry.entries()) {
    const std::string name = key.is_string() ? key.as_string() : key.found();
    if (name == kStepState) {
      result.set(name, unshared(parameter.step));
    } else if (parameter.states.contains(name)) {
      result.set(name, tensor(name));
    } else if (const auto number = parameter.numbers.find(name);
               number != parameter.numbers.end()) {
      result.set(name, unshared(number->second));
    } else if (value.is_tensor()) {
      value.refuse("a state of each element, or a number");
    } else {
      result.set(name, value);
    }
  }
  return result;
}

// Throws unless all parameters of a group have its step and its other single numbers.
void check_same_numbers(const Group& group) {
  const Parameter& first = group.parameters[0];
  const auto check = [&](const Parameter& parameter, const std::string& key, const Value& own,
                         const Value& firsts) {
    if (own && firsts ? own.as_double() == firsts.as_double() : own.is_none() == firsts.is_none())
      return;
    throw Unreadable(parameter.name + ": is at " + key + " " + own.found() + ", but " + first.name +
                     " of the same group at " + firsts.found() + "; ZeRO 1 to 3 have one " + key +
                     " for a group");
  };
  for (const Parameter& parameter : group.parameters) {
    check(parameter, std::string(kStepState), parameter.step, first.step);
    for (const auto& [key, number] : first.numbers) {
      const auto own = parameter.numbers.find(key);
      if (key != kRecomputedNumber)
        check(parameter, key, own == parameter.numbers.end() ? Value() : own->second, number);
    }
  }
}

Value settings_of(const Group& group, int64_t first, int64_t count) {
  std::vector<int64_t> indices(static_cast<size_t>(count));
  std::iota(indices.begin(), indices.end(), first);
  Value settings = group.settings;
  return settings.set(keys::kParams, Value::list_of(indices));
}

// Cuts the stacked experts of a group down to those of an ep rank.
void keep_experts(Group& group, int ep_rank, int ep_size) {
  group.settings.set(keys::kGroupName, ExpertSpread::group_name(ep_size));
  for (Parameter& parameter : group.parameters) {
    if (parameter.shape.at(0) % ep_size != 0)
      throw UserError("--target: ep=" + std::to_string(ep_size) + " does not divide the " +
                      std::to_string(parameter.shape[0]) + " experts of " + parameter.name);
    parameter.shape[0] /= ep_size;
    for (auto& [state, tensor] : parameter.states)
      tensor = tensor.slice(ep_rank * numel(parameter.shape), parameter.shape);
  }
}

Value shapes_of(std::span<const Parameter> parameters) {
  std::vector<Value::Entry> shapes;
  for (const Parameter& parameter : parameters)
    shapes.emplace_back(parameter.name, Value::size(parameter.shape));
  return Value::ordered_dict(std::move(shapes));
}

}  // namespace

bool has_bf16_optimizer(const CheckpointMesh& mesh, const Value& config) {
  const Value dtype = config_entry(config, keys::kDataTypes, keys::kGradAccumDtype);
  return mesh.stage == 1 && mesh.dtype == DType::kBFloat16 && dtype.is_string() &&
         (dtype.as_string() == "fp32" || dtype.as_string() == "float32");
}

OptimizerFiles::OptimizerFiles(const RankModel& rank, const CheckpointMesh& mesh,
                               ExpertSpread experts, const Value& config, const Value& common)
    : mesh_(mesh), experts_(std::move(experts)), common_(common) {
  const auto zero = [&](std::string_view key) {
    return config_entry(config, keys::kZeroOptimization, key);
  };
  is_bf16_optimizer_ = has_bf16_optimizer(mesh, config);
  const bool is_flat = (mesh.stage == 1 || mesh.stage == 2) && !is_bf16_optimizer_;
  if (is_flat && is_true(zero(keys::kParameterAlignment)))
    alignment_ = kAlignedBytes / std::gcd(kAlignedBytes, int64_t(element_size(mesh.dtype)));
  const Value offload = zero(keys::kOffloadOptimizer);
  const Value device = offload.is_dict() ? offload.find(keys::kDevice) : Value();
  whole_momentum_ = is_flat && (!device.is_string() || device.as_string() == "none");
  const Value size = zero(keys::kSubGroupSize);
  sub_group_size_ = is_single(size) ? static_cast<int64_t>(size.as_double()) : kSubGroupSizeDefault;
  Groups all = rank.groups;
  std::erase_if(all, [](const Group& group) { return group.parameters.empty(); });
  for (Group& group : all) {
    if (mesh.stage > 0) check_same_numbers(group);
    if (!is_flat || !is_true(zero(keys::kRoundRobinGradients))) continue;
    std::vector<Parameter> parameters;
    for (const size_t i : round_robin_order(group.parameters.size(), mesh.dp_size))
      parameters.push_back(group.parameters[i]);
    group.parameters = std::move(parameters);
  }
  for (int ep = 0; ep < mesh.ep_size; ++ep) {
    groups_.push_back(all);
    for (Group& group : groups_.back())
      if (group.experts) keep_experts(group, ep, mesh.ep_size);
  }
}

ExpertSpread::Rank OptimizerFiles::place_of(int dp_rank) const {
  return experts_.rank_of(dp_rank, mesh_.dp_size, 0, mesh_.tp_size);  // tp cuts the experts
}

const OptimizerFiles::Groups& OptimizerFiles::groups(int dp_rank) const {
  return groups_[static_cast<size_t>(place_of(dp_rank).ep)];
}

OptimizerFiles::Part OptimizerFiles::part_of(const Group& group, int dp_rank) const {
  if (!group.experts) return {dp_rank, mesh_.dp_size};
  const ExpertSpread::Rank place = place_of(dp_rank);
  return {place.edp, place.edp_size};
}

std::vector<int64_t> OptimizerFiles::gaps_of(const Group& group) const {
  std::vector<int64_t> gaps;
  int64_t end = 0;
  for (const Parameter& parameter : group.parameters) {
    end += numel(parameter.shape);
    gaps.push_back((alignment_ - end % alignment_) % alignment_);
    end += gaps.back();
  }
  gaps.back() = 0;
  return gaps;
}

FlatGroup OptimizerFiles::layout_of(const Group& group) const {
  std::vector<int64_t> numels;
  for (const Parameter& parameter : group.parameters) numels.push_back(numel(parameter.shape));
  return FlatGroup(numels, part_of(group, 0).ranks, gaps_of(group));
}

OptimizerFiles::Flat OptimizerFiles::flat_group(const Group& group, int dp_rank) const {
  const FlatGroup layout = layout_of(group);
  return {&group, layout.fragments(part_of(group, dp_rank).rank), layout.partition_numel()};
}

// Cuts each parameter among the dp ranks, and the groups into sub-groups of about sub_group_size
// elements a rank.
std::vector<OptimizerFiles::Flat> OptimizerFiles::sub_groups(int dp_rank) const {
  std::vector<Flat> result;
  for (const Group& group : groups(dp_rank)) {
    const auto [rank, ranks] = part_of(group, dp_rank);
    int64_t all = 0;
    for (const Parameter& parameter : group.parameters)
      all += zero3_part_numel(numel(parameter.shape), ranks);
    Flat sub{&group, {}, 0};
    for (size_t i = 0; i < group.parameters.size(); ++i) {
      const int64_t count = numel(group.parameters[i].shape);
      const auto [begin, held] = zero3_part(count, rank, ranks);
      sub.fragments.push_back({i, begin, sub.numel, held});
      sub.numel += zero3_part_numel(count, ranks);
      const bool last = i + 1 == group.parameters.size();
      if (!last && (sub_group_size_ >= all || sub.numel < sub_group_size_)) continue;
      result.push_back(std::move(sub));
      sub = {&group, {}, 0};
    }
  }
  return result;
}

Value OptimizerFiles::param_shapes() const {
  const bool experts = std::ranges::any_of(groups_[0], &Group::experts);
  if (mesh_.stage == 0 && !experts) return {};  // DeepSpeed has none; experts' files need them
  Value shapes = Value::list();
  if (mesh_.stage < 3) {
    for (const Group& group : groups_[0]) shapes.push_back(shapes_of(group.parameters));
    return shapes;
  }
  for (const Flat& sub : sub_groups(0)) {
    const std::span all = sub.group->parameters;
    shapes.push_back(shapes_of(all.subspan(sub.fragments[0].param, sub.fragments.size())));
  }
  return shapes;
}

// Returns the state of torch's optimizer: an entry for each flat tensor.
Value OptimizerFiles::base_state(const std::vector<Flat>& flats, const Groups& groups) const {
  std::vector<Value::Entry> states;
  for (const Flat& flat : flats) {
    const Group& group = *flat.group;
    const auto index = static_cast<int64_t>(&flat - flats.data());
    if (!group.entry) continue;
    states.emplace_back(index,
                        entry_like(group.entry, group.parameters[0], [&](const std::string& state) {
                          if (whole_momentum_ && state == kMomentumState &&
                              is_true(group.settings.find(keys::kUseMuon)))
                            return whole_parameters(group, state, flat.fragments);
                          return flat_tensor(group, state, flat.fragments, flat.numel);
                        }));
  }
  Value settings = Value::list();
  int64_t first = 0;
  for (const Group& group : groups) {
    const auto own = std::ranges::count(flats, &group, &Flat::group);
    settings.push_back(settings_of(group, first, own));
    first += own;
  }
  return Value::dict(
      {{keys::kState, Value::dict(std::move(states))}, {keys::kParamGroups, settings}});
}

Value OptimizerFiles::stage12(int dp_rank) const {
  std::vector<Flat> flats;
  Value masters = Value::list(), paddings = Value::list(), gaps = Value::list(),
        mappings = Value::list(), counts = Value::list();
  for (const Group& group : groups(dp_rank)) {
    const Flat& flat = flats.emplace_back(flat_group(group, dp_rank));
    const auto [rank, ranks] = part_of(group, dp_rank);
    const int64_t padding = layout_of(group).padding(rank);
    counts.push_back(ranks);
    const int64_t count = is_bf16_optimizer_ ? flat.numel : flat.numel - padding;
    masters.push_back(flat_tensor(group, kFp32State, flat.fragments, count));
    paddings.push_back(padding);
    gaps.push_back(Value::list_of(gaps_of(group)));
    std::vector<Value::Entry> addresses;
    for (const Fragment& fragment : flat.fragments)
      addresses.emplace_back(group.parameters[fragment.param].name,
                             fragment_address(fragment.numel, fragment.partition_start));
    mappings.push_back(Value::ordered_dict(std::move(addresses)));
  }
  Value state = Value::dict();
  if (!is_bf16_optimizer_) {
    for (const auto key : {keys::kLossScaler, keys::kDynamicLossScale, keys::kOverflow})
      state.set(key, common_.at(key));
  }
  state.set(keys::kClipGrad, common_.at(keys::kClipGrad))
      .set(keys::kBaseOptimizerState, base_state(flats, groups(dp_rank)))
      .set(keys::kFp32Groups, masters);
  if (!is_bf16_optimizer_) state.set(keys::kZeroStage, zero_stage_enum(mesh_.stage));
  state.set(keys::kGroupPaddings, paddings);
  if (!is_bf16_optimizer_) state.set(keys::kParamAlignmentPaddings, gaps);
  return state.set(keys::kPartitionCount, counts)
      .set(keys::kDsVersion, common_.at(keys::kDsVersion))
      .set(keys::kParamSliceMappings, mappings);
}

Value OptimizerFiles::stage3(int dp_rank) const {
  const std::vector<Flat> flats = sub_groups(dp_rank);
  Value masters = Value::list();
  for (const Flat& flat : flats)
    masters.push_back(flat_tensor(*flat.group, kFp32State, flat.fragments, flat.numel));
  Value state = Value::dict({{keys::kZeroStage, zero_stage_enum(3)}});
  for (const auto key : {keys::kLossScaler, keys::kDynamicLossScale, keys::kOverflow})
    state.set(key, common_.at(key));
  state.set(keys::kPartitionCount, mesh_.dp_size)
      .set(keys::kOptimizerStateDict, base_state(flats, groups(dp_rank)))
      .set(keys::kFp32FlatGroups, masters);
  if (std::ranges::none_of(groups(dp_rank), &Group::experts)) return state;
  Value list = Value::list();
  for (size_t i = 0; i < flats.size(); ++i) {
    ExpertSpread::Rank place = place_of(dp_rank);
    if (!flats[i].group->experts) {
      place.edp = dp_rank;
      place.edp_size = mesh_.dp_size;
    }
    list.push_back(zero_partition_group(static_cast<int64_t>(i), flats[i].group->experts, place));
  }
  return state.set(keys::kZeroPartitionGroups, list);
}

Value OptimizerFiles::state(int dp_rank) const {
  Value state = mesh_.stage == 3 ? stage3(dp_rank) : stage12(dp_rank);
  if (const Value info = common_.find(keys::kUniversalInfo)) state.set(keys::kUniversalInfo, info);
  return state;
}

// Torch's own state has an entry for each parameter, and the weights are the masters.
Value OptimizerFiles::whole_state(int ep_rank) const {
  std::vector<Value::Entry> states;
  Value settings = Value::list();
  int64_t index = 0;
  for (const Group& group : groups_[static_cast<size_t>(ep_rank)]) {
    settings.push_back(settings_of(group, index, static_cast<int64_t>(group.parameters.size())));
    for (const Parameter& parameter : group.parameters) {
      if (group.entry)
        states.emplace_back(index,
                            entry_like(group.entry, parameter, [&](const std::string& state) {
                              return parameter.states.find(state)->second;
                            }));
      ++index;
    }
  }
  return Value::dict(
      {{keys::kState, Value::dict(std::move(states))}, {keys::kParamGroups, settings}});
}

}  // namespace anymesh
