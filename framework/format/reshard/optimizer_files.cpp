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
        {0, next, fragment.numel, whole, static_cast<uint64_t>(fragment.param_start) * size});
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

// Returns a state entry like the source's, with these tensors and this step. None before the first.
Value entry_like(const Value& entry, const Parameter& parameter,
                 const std::function<TensorRecord(const std::string& state)>& tensor) {
  if (!entry) return {};
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

// Whether DeepSpeed trains with BF16_Optimizer, which keeps gradients in fp32.
bool has_bf16_optimizer(const CheckpointMesh& mesh, const Value& config) {
  const Value dtype = config_entry(config, keys::kDataTypes, keys::kGradAccumDtype);
  return mesh.stage == 1 && mesh.dtype == DType::kBFloat16 && dtype.is_string() &&
         (dtype.as_string() == "fp32" || dtype.as_string() == "float32");
}

}  // namespace

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
  param_shapes_ = shapes();
}

ExpertSpread::Rank OptimizerFiles::place_of(int dp_rank, bool experts) const {
  const int tp_rank = 0;  // tp cuts the experts
  ExpertSpread::Rank place = experts_.rank_of(dp_rank, mesh_.dp_size, tp_rank, mesh_.tp_size);
  if (!experts) {
    place.edp = dp_rank;
    place.edp_size = mesh_.dp_size;
  }
  return place;
}

const OptimizerFiles::Groups& OptimizerFiles::groups(int dp_rank) const {
  return groups_[static_cast<size_t>(place_of(dp_rank, /*experts=*/true).ep)];
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
  return FlatGroup(numels, place_of(0, group.experts).edp_size, gaps_of(group));
}

std::vector<OptimizerFiles::Flat> OptimizerFiles::flat_groups(int dp_rank) const {
  std::vector<Flat> result;
  for (const Group& group : groups(dp_rank)) {
    const FlatGroup layout = layout_of(group);
    result.push_back(
        {&group, layout.fragments(place_of(dp_rank, group.experts).edp), layout.partition_numel()});
  }
  return result;
}

// Cuts each parameter among the dp ranks, and the groups into sub-groups of about sub_group_size
// elements a rank.
std::vector<OptimizerFiles::Flat> OptimizerFiles::sub_groups(int dp_rank) const {
  std::vector<Flat> result;
  for (const Group& group : groups(dp_rank)) {
    const ExpertSpread::Rank place = place_of(dp_rank, group.experts);
    const int rank = place.edp, ranks = place.edp_size;
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

Value OptimizerFiles::shapes() const {
  const bool experts = std::ranges::any_of(groups_[0], &Group::experts);
  const bool ours = std::ranges::any_of(groups_[0], [](const Group& group) {
    return !group.settings.find(keys::kOptimizerName)
                .is_none();  // Muon's order is not the module's
  });
  if (mesh_.stage == 0 && !experts && !ours) return {};  // DeepSpeed has none
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

Value OptimizerFiles::flat_torch_state(const std::vector<Flat>& flats, const Groups& groups) const {
  std::vector<TorchGroup> all;
  for (const Group& group : groups) {
    const bool whole_momentum = whole_momentum_ && is_true(group.settings.find(keys::kUseMuon));
    TorchGroup& own = all.emplace_back(TorchGroup{group.settings, {}});
    if (whole_momentum) own.settings.erase(keys::kOptimizerName);  // which says that it is ours
    for (const Flat& flat : flats) {
      if (flat.group != &group) continue;
      own.states.push_back(
          entry_like(group.entry, group.parameters[0], [&](const std::string& state) {
            if (whole_momentum && state == kMomentumState)
              return whole_parameters(group, state, flat.fragments);
            return flat_tensor(group, state, flat.fragments, flat.numel);
          }));
    }
  }
  return torch_state(all);
}

FlatState OptimizerFiles::flat_state(const Flat& flat, int dp_rank) const {
  const Group& group = *flat.group;
  FlatState state{.experts = group.experts, .place = place_of(dp_rank, group.experts)};
  int64_t count = flat.numel;
  if (mesh_.stage < 3) {
    state.padding = layout_of(group).padding(state.place.edp);
    state.gaps = gaps_of(group);
    for (const Fragment& fragment : flat.fragments)
      state.fragments.emplace_back(group.parameters[fragment.param].name, fragment);
    if (!is_bf16_optimizer_) count -= state.padding;
  }
  state.master = flat_tensor(group, kFp32State, flat.fragments, count);
  return state;
}

Value OptimizerFiles::state(int dp_rank) const {
  const bool zero3 = mesh_.stage == 3;
  const std::vector<Flat> flats = zero3 ? sub_groups(dp_rank) : flat_groups(dp_rank);
  std::vector<FlatState> states;
  for (const Flat& flat : flats) states.push_back(flat_state(flat, dp_rank));
  const Value torch = flat_torch_state(flats, groups(dp_rank));
  Value state = zero3 ? zero3_state(common_, mesh_.dp_size, torch, states)
                      : zero12_state(common_, mesh_.stage, torch, states, is_bf16_optimizer_);
  if (const Value info = common_.find(keys::kUniversalInfo)) state.set(keys::kUniversalInfo, info);
  return state;
}

// Torch's own state has an entry for each parameter, and the weights are the masters.
Value OptimizerFiles::whole_state(int ep_rank) const {
  std::vector<TorchGroup> all;
  for (const Group& group : groups_[static_cast<size_t>(ep_rank)]) {
    std::vector<Value>& states = all.emplace_back(TorchGroup{group.settings, {}}).states;
    for (const Parameter& parameter : group.parameters)
      states.push_back(entry_like(group.entry, parameter, [&](const std::string& state) {
        return parameter.states.find(state)->second;
      }));
  }
  return torch_state(all);
}

}  // namespace anymesh
