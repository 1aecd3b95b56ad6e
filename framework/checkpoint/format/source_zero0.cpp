// ZeRO 0: the optimizer lies whole in the mp_rank file. Plain torch optimizers have one state for
// each parameter, and the weights themselves as masters; DeepSpeed's half-precision wrappers have
// masters, flat (FP16_Optimizer) or one by one.

#include <set>
#include <unordered_map>

#include "framework/checkpoint/format/source_stages.h"

namespace anymesh {
namespace {

using Groups = std::vector<std::vector<NamedShape>>;

// Leaves buffers out, and all but the first name of a tied weight.
std::vector<NamedShape> parameters_of(const NamedTensors& tensors, const Value& model_state) {
  const std::set<std::string> buffers = buffer_names(model_state);
  std::vector<NamedShape> result;
  std::set<const ByteSource*> seen;
  for (const auto& [name, tensor] : tensors) {
    if (!buffers.contains(name) && seen.insert(tensor.bytes.get()).second)
      result.push_back({name, tensor.shape});
  }
  return result;
}

// Megatron's bucketing, which DeepSpeed's users follow: biases and one-dimensional weights have no
// decay.
Groups bucket(const std::vector<NamedShape>& parameters, const Value& param_groups) {
  Groups groups(param_groups.size());
  if (groups.size() == 1) {
    groups[0] = parameters;
    return groups;
  }
  const auto decays = [&](size_t g) {
    return param_groups.at(g).at(keys::kWeightDecay).as_double() > 0;
  };
  if (groups.size() != 2 || decays(0) == decays(1)) {
    param_groups.fail(
        "one group, or one with and one without weight decay (DeepSpeed does not record at ZeRO 0 "
        "which "
        "parameters are in which group)");
  }
  for (const NamedShape& parameter : parameters) {
    const bool decay = parameter.shape.size() > 1 && !parameter.name.ends_with(".bias");
    groups[decay == decays(0) ? 0 : 1].push_back(parameter);
  }
  return groups;
}

Groups find_groups(const SourceCheckpoint& source, const Value& model_state,
                   const Value& param_groups, const NamedTensors& tensors) {
  if (const Value shapes = model_state.find(keys::kParamShapes)) {
    Groups groups;
    for (const Value& dict : shapes.items()) groups.push_back(named_shapes(dict));
    if (groups.size() != param_groups.size())
      shapes.fail(std::to_string(param_groups.size()) + " groups");
    return groups;
  }
  if (source.pp_size > 1) {
    model_state.at(keys::kParamShapes)
        .fail("shapes (DeepSpeed does not record at ZeRO 0 which parameters a pipeline stage has)");
  }
  return bucket(parameters_of(tensors, model_state), param_groups);
}

class RankReader {
 public:
  RankReader(SourceCheckpoint& source, int mp, DeferredChecks* checks)
      : source_(source),
        checks_(checks),
        mp_(mp),
        model_state_(source.model_states[static_cast<size_t>(mp)]),
        optimizer_(model_state_.at(keys::kOptimizer)) {
    if (!optimizer_) optimizer_.fail("the optimizer's state (or optimizer files beside it)");
    if (optimizer_.find(keys::kFp32Groups)) {
      optimizer_.fail(
          "an optimizer without partitions (DeepSpeed cannot resume a ZeRO 0 checkpoint of "
          "BF16_Optimizer either)");
    }
    torch_ = optimizer_.find(keys::kOptimizerStateDict).value_or(optimizer_);
    for (const auto& [key, entry] : torch_.at(keys::kState).entries()) {
      if (key.is_int()) states_.emplace(key.as_int(), entry);
    }
  }

  void read() {
    const Value flat = optimizer_.find(keys::kFp32GroupsFlat);
    const Value unfused = optimizer_.find(keys::kFp32GroupsUnfused);
    const bool has_shapes = static_cast<bool>(model_state_.find(keys::kParamShapes));
    NamedTensors tensors;
    if (!has_shapes || (!flat && !unfused))
      tensors = weights_of(source_, mp_ % source_.tp_size, checks_);
    weights_ = {tensors.begin(), tensors.end()};
    const Value param_groups = torch_.at(keys::kParamGroups);
    const Groups groups = find_groups(source_, model_state_, param_groups, tensors);
    for (size_t g = 0; g < groups.size(); ++g) {
      if (flat) {
        read_flat(flat.at(g), state(static_cast<int64_t>(g)), param_groups.at(g), groups[g]);
      } else {
        read_each(unfused ? unfused.at(g) : Value(), param_groups.at(g), groups[g]);
      }
    }
  }

  // What a universal folder has of the stages whose optimizer file holds it ready.
  Value universal_state() const {
    Value groups = Value::list();
    int64_t g = 0;
    for (Value group : torch_.at(keys::kParamGroups).items()) {
      groups.push_back(group.set(keys::kParams, Value::list({g++})));
    }
    const std::vector<int64_t> zeros(groups.size(), 0), counts(groups.size(), source_.dp_size);
    const bool dynamic = optimizer_.find(keys::kDynamicLossScale).value_or(false).as_bool();
    return Value::dict({{keys::kLossScaler, scaler(dynamic)},
                        {keys::kDynamicLossScale, dynamic},
                        {keys::kOverflow, optimizer_.find(keys::kOverflow).value_or(false)},
                        {keys::kClipGrad, optimizer_.find(keys::kClipGrad).value_or(0.0)},
                        {keys::kZeroStage, zero_stage_enum(0)},
                        {keys::kGroupPaddings, Value::list_of(zeros)},
                        {keys::kPartitionCount, Value::list_of(counts)},
                        {keys::kDsVersion, model_state_.at(keys::kDsVersion)},
                        {keys::kParamGroups, groups}});
  }

 private:
  Value state(int64_t index) const {
    const auto found = states_.find(index);
    return found == states_.end() ? Value() : found->second;
  }

  Value scaler(bool dynamic) const {
    const Value scale = optimizer_.find(keys::kCurScale);
    if (!dynamic) return loss_scaler(scale.value_or(1.0).as_double());
    std::vector<Value::Entry> fields = {{keys::kCurScale, scale}, {keys::kDynamic, true}};
    for (const auto key :
         {keys::kCurIter, keys::kLastOverflowIter, keys::kScaleFactor, keys::kScaleWindow}) {
      fields.emplace_back(key, optimizer_.at(key));
    }
    // DeepSpeed's FP16_Optimizer has no hysteresis: the defaults are DynamicLossScaler's.
    const std::vector<Value::Entry> defaults = {{keys::kMinScale, 1.0},
                                                {keys::kDelayedShift, 1},
                                                {keys::kCurHysteresis, 1},
                                                {keys::kConsecutiveHysteresis, false},
                                                {keys::kRaiseErrorAtMinScale, true},
                                                {keys::kDtype, Value::dtype(DType::kFloat16)}};
    for (const auto& [key, value] : defaults)
      fields.emplace_back(key, optimizer_.find(key.as_string()).value_or(value));
    return dynamic_loss_scaler(std::move(fields));
  }

  // One flat tensor for each state of the group.
  void read_flat(const Value& fp32, const Value& adam, const Value& param_group,
                 const std::vector<NamedShape>& group) {
    int64_t offset = 0;
    for (const NamedShape& parameter : group) {
      const int64_t count = numel(parameter.shape);
      SourceShard& shard = shard_of(source_, parameter.name, mp_, parameter.shape);
      add_fragments(shard, 0, fp32, adam, offset, 0, count);
      if (adam) set_step(shard, parameter.name, step_of(adam, param_group));
      offset += count;
    }
    if (fp32.as_tensor().numel() < offset) fp32.fail(std::to_string(offset) + " elements");
  }

  // One tensor for each parameter and state. `masters`: a list in the group's order, or None, then
  // the weights are.
  void read_each(const Value& masters, const Value& param_group,
                 const std::vector<NamedShape>& group) {
    const std::vector<int64_t> indices = param_group.at(keys::kParams).as_ints();
    if (indices.size() != group.size()) {
      param_group.at(keys::kParams)
          .fail(std::to_string(group.size()) + " parameters, " +
                (group.empty() ? "none" : group.front().name + " first"));
    }
    for (size_t i = 0; i < group.size(); ++i) {
      const auto& [name, shape] = group[i];
      SourceShard& shard = shard_of(source_, name, mp_, shape);
      add_whole(shard, kFp32, masters ? masters.at(i) : weight(name), shape);
      const Value adam = state(indices[i]);
      if (!adam) continue;
      add_whole(shard, kExpAvg, adam.at(kExpAvgState), shape);
      add_whole(shard, kExpAvgSq, adam.at(kExpAvgSqState), shape);
      set_step(shard, name, step_of(adam, param_group));
    }
  }

  static void add_whole(SourceShard& shard, StateIndex state, const Value& value,
                        const Shape& shape) {
    if (value.as_tensor().shape != shape) value.fail("a tensor of shape " + to_string(shape));
    add_fragment(shard, state, 0, value, 0, 0, numel(shape));
  }

  Value weight(const std::string& name) const {
    const auto found = weights_.find(name);
    if (found == weights_.end())
      throw ValueError(model_state_.where() + ": the weights of " + name + " are missing");
    const Value value = Value(found->second).named(name);
    if (found->second.dtype != DType::kFloat32)
      value.fail("float32 weights, since the optimizer has no masters");
    return value;
  }

  SourceCheckpoint& source_;
  DeferredChecks* checks_;
  int mp_;
  Value model_state_, optimizer_, torch_;
  std::unordered_map<int64_t, Value> states_;  // of the optimizer, by parameter or group
  std::unordered_map<std::string, TensorRecord> weights_;
};

}  // namespace

void read_zero0(SourceCheckpoint& source, DeferredChecks* checks) {
  for (int mp = 0; mp < source.tp_size * source.pp_size; ++mp) {
    RankReader reader(source, mp, checks);
    reader.read();
    if (mp == 0) source.optimizer_state = reader.universal_state();
  }
}

}  // namespace anymesh
