// ZeRO 0: the whole optimizer is in the mp_rank file. Plain torch optimizers have one state entry
// for each parameter, and the weights themselves are the masters. DeepSpeed's half-precision
// wrappers have masters, either flat (FP16_Optimizer) or one for each parameter.

#include "framework/format/sharded/stages.h"
#include "framework/format/sharded/tensor_views.h"
#include "framework/format/write/rank_files.h"
#include "framework/util/errors.h"

namespace anymesh {
namespace {

using Groups = std::vector<std::vector<NamedShape>>;

// Groups parameters as Megatron does, and DeepSpeed's users after it: biases and one-dimensional
// weights have no weight decay.
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
    throw Unproven(param_groups.where() +
                   ": expected one group, or one with and one without weight decay (DeepSpeed does "
                   "not record at ZeRO 0 which parameters are in which group)");
  }
  for (const NamedShape& parameter : parameters) {
    const bool decay = parameter.shape.size() > 1 && !parameter.name.ends_with(".bias");
    groups[decay == decays(0) ? 0 : 1].push_back(parameter);
  }
  return groups;
}

// Groups parameters by the names that torch records for an optimizer over named parameters. Returns
// no groups unless all names are the model's: a submodule named by itself has others.
Groups named_groups(const Value& param_groups, const Weights& weights) {
  Groups groups;
  for (const Value& group : param_groups.items()) {
    auto& parameters = groups.emplace_back();
    const Value names = group.find(keys::kParamNames);
    if (!names) return {};
    for (const std::string& name : names.as_strings()) {
      const auto weight = weights.find(name);
      if (weight == weights.end()) return {};
      parameters.push_back({name, weight->second.shape});
    }
  }
  return groups;
}

class RankReader {
 public:
  RankReader(ShardedCheckpoint& source, int mp, const Value& optimizer, int ep_rank,
             bool module_order)
      : source_(source),
        mp_(mp),
        ep_rank_(ep_rank),
        module_order_(module_order),
        model_state_(source.model_states[static_cast<size_t>(mp)]),
        optimizer_(optimizer) {
    if (!optimizer_ && model_state_.find(keys::kParamShapes))
      optimizer_.fail("the optimizer's state (or optimizer files beside it)");
    if (!optimizer_) throw Unproven(optimizer_.where() + ": is None: none was saved");
    if (optimizer_.find(keys::kFp32Groups)) {
      throw Unproven(optimizer_.where() +
                     ": is BF16_Optimizer's of ZeRO 0, which DeepSpeed cannot resume either");
    }
    if (!source.experts.layers.empty() && !model_state_.find(keys::kParamShapes))
      throw Unproven(model_state_.where() + ": has no " + std::string(keys::kParamShapes) +
                     ", so that nothing says which state is of which expert");
    const NamedTensors& tensors = source.model_tensors[static_cast<size_t>(mp % source.tp_size)];
    weights_ = {tensors.begin(), tensors.end()};
    flat_ = optimizer_.find(keys::kFp32GroupsFlat);
    unfused_ = optimizer_.find(keys::kFp32GroupsUnfused);
    torch_ = optimizer_.find(keys::kOptimizerStateDict).value_or(optimizer_);
    const Value states = torch_.find(keys::kState);
    if (!states.is_dict() || !torch_.find(keys::kParamGroups).is_list())
      throw Unproven(torch_.where() + ": has no state and param_groups, as torch's optimizers do");
    for (const auto& [key, entry] : states.entries())
      if (key.is_int()) states_.emplace(key.as_int(), entry);
  }

  // Adds the groups of dense parameters, of experts, or both.
  void read(bool dense, bool experts) {
    const Value param_groups = torch_.at(keys::kParamGroups);
    const Order order = find_order(param_groups);
    if (!order.doubt.empty()) source_.states_refused = order.doubt;
    source_.weights_rounded |= !order.doubtful.empty();
    if (dense) {
      source_.optimizers.push_back(optimizer_);
      auto& names = source_.groups.emplace_back();
      for (const auto& group : order.groups) names.push_back(names_of(group));
    }
    for (size_t g = 0; g < order.groups.size(); ++g) {
      GroupPart part(source_, has_experts(source_, order.groups[g]), 0, mp_, param_groups.at(g));
      part.spread.ep = ep_rank_;
      if (!(part.experts ? experts : dense)) continue;
      if (flat_) {
        read_flat(flat_.at(g), state(static_cast<int64_t>(g)), param_groups.at(g), order.groups[g],
                  part, order.doubtful);
      } else {
        read_each(unfused_ ? unfused_.at(g) : Value(), param_groups.at(g), order.groups[g], part,
                  order.doubtful);
      }
    }
  }

  // Builds the contents of optimizer_state.pt, which other stages' optimizer files already hold.
  Value optimizer_state() const {
    Value groups = Value::list();
    std::vector<Value::Entry> entries;  // of each group's first parameter
    int64_t g = 0;
    for (Value group : torch_.at(keys::kParamGroups).items()) {
      const Value params = group.at(keys::kParams);
      entries.emplace_back(g,
                           params.size() > 0 ? state(flat_ ? g : params.at(0).as_int()) : Value());
      groups.push_back(group.set(keys::kParams, Value::list({g++})));
    }
    const bool dynamic = optimizer_.find(keys::kDynamicLossScale).value_or(false).as_bool();
    return universal_state(
        Value::dict({{keys::kLossScaler, scaler(dynamic)},
                     {keys::kDynamicLossScale, dynamic},
                     {keys::kOverflow, optimizer_.find(keys::kOverflow).value_or(false)},
                     {keys::kClipGrad, clip_grad()},
                     {keys::kZeroStage, zero_stage_enum(0)},
                     {keys::kGroupPaddings, Value::list()},
                     {keys::kPartitionCount, Value::list()},
                     {keys::kDsVersion, model_state_.at(keys::kDsVersion)}}),
        Value::dict(
            {{keys::kState, Value::dict(std::move(entries))}, {keys::kParamGroups, groups}}),
        source_.dp_size);
  }

 private:
  // DeepSpeed's ZeRO 1 and 2 clip by what is loaded. Not all classes of ZeRO 0 keep it; the config
  // has it for all of them.
  double clip_grad() const {
    if (const Value kept = optimizer_.find(keys::kClipGrad)) return kept.as_double();
    const Value config = model_state_.find(keys::kDsConfig);
    const Value clip = config.is_dict() ? config.find(keys::kGradientClipping) : Value();
    return is_single(clip) ? clip.as_double() : 0.0;
  }

  // Takes the recorded order if there is one. Without a pipeline, Megatron's optimizers, and any
  // with module_order_, are taken to be in the module's order; check_master() verifies that by
  // value. Otherwise finds the order from the masters' values, or from the states' shapes.
  Order find_order(const Value& param_groups) const {
    const Value masters = flat_ ? flat_ : unfused_;
    if (const Value shapes = model_state_.find(keys::kParamShapes)) {
      Order order;
      for (const Value& dict : shapes.items()) order.groups.push_back(named_shapes(dict));
      if (order.groups.size() != param_groups.size())
        shapes.fail(std::to_string(param_groups.size()) + " groups");
      return order;
    }
    Order order{.groups = named_groups(param_groups, weights_)};
    if (!order.groups.empty()) return order;
    const auto candidates = trainable(source_, mp_ % source_.tp_size);
    if (source_.pp_size == 1 && (module_order_ || is_megatrons(model_state_)))
      return {.groups = bucket(candidates, param_groups)};
    return masters ? order_by_value(masters, candidates, weights_)
                   : order_by_shape(param_groups, states_, candidates);
  }

  Value scaler(bool dynamic) const {
    const Value scale = optimizer_.find(keys::kCurScale);
    if (!dynamic) return loss_scaler(scale.value_or(1.0).as_double());
    for (const auto key :
         {keys::kCurIter, keys::kLastOverflowIter, keys::kScaleFactor, keys::kScaleWindow})
      optimizer_.at(key);  // DeepSpeed's FP16_Optimizer has these, but no hysteresis
    return dynamic_loss_scaler_of(optimizer_);
  }

  // Reads a group that has one flat tensor for each state.
  void read_flat(const Value& fp32, const Value& adam, const Value& param_group,
                 const std::vector<NamedShape>& group, const GroupPart& part,
                 const std::set<std::string>& doubtful) {
    int64_t offset = 0;
    const OptimizerStates states =
        states_of(source_, adam, param_group, {fp32.as_tensor().numel()});
    for (const NamedShape& parameter : group) {
      const int64_t count = numel(parameter.shape);
      const auto [name, shape, begin] = part.place(source_, parameter);
      ParameterShard& shard = shard_of(source_, name, part.mp_rank, shape);
      if (doubtful.contains(name)) {
        add_fragment(shard, kFp32State, 0, weight(name), 0, begin, count);
      } else {
        add_fragments(shard, 0, fp32, states, offset, begin, count);
        check_master(name, shard);
      }
      set_numbers(source_, shard, name, states);
      offset += count;
    }
    if (fp32.as_tensor().numel() < offset) fp32.fail(std::to_string(offset) + " elements");
  }

  // Reads a group that has one tensor for each parameter and state. `masters` is a list in the
  // group's order. If it is None, the weights are the masters.
  void read_each(const Value& masters, const Value& param_group,
                 const std::vector<NamedShape>& group, const GroupPart& part,
                 const std::set<std::string>& doubtful) {
    const std::vector<int64_t> indices = param_group.at(keys::kParams).as_ints();
    if (indices.size() != group.size()) {
      throw Unproven(param_group.at(keys::kParams).where() + ": expected " +
                     std::to_string(group.size()) + " parameters, " +
                     (group.empty() ? "none" : group.front().name + " first") + ", found " +
                     std::to_string(indices.size()));
    }
    for (size_t i = 0; i < group.size(); ++i) {
      const Shape& held = group[i].shape;
      if (group[i].name.empty()) continue;
      const auto [name, shape, begin] = part.place(source_, group[i]);
      ParameterShard& shard = shard_of(source_, name, part.mp_rank, shape);
      const bool has_master = masters && !doubtful.contains(name);
      const Value fp32 = has_master ? masters.at(i) : weight(name, begin, held);
      if (fp32.as_tensor().shape != held) fp32.fail("a tensor of shape " + to_string(held));
      const OptimizerStates states =
          states_of(source_, state(indices[i]), param_group, {numel(held)}, &held);
      add_fragments(shard, 0, fp32, states, 0, begin, numel(held));
      if (has_master) check_master(name, shard);
      set_numbers(source_, shard, name, states);
    }
  }

  // Throws Unproven if an order that the files do not record contradicts the values.
  void check_master(const std::string& name, const ParameterShard& shard) const {
    if (model_state_.find(keys::kParamShapes)) return;
    if (!rounds_to(shard_tensor(shard, kFp32State), weights_.at(name)))
      throw Unproven(optimizer_.where() + ": its masters of " + name +
                     ", by the order of the parameters, do not round to the model's weights");
  }

  Value weight(const std::string& name) const {
    const auto found = weights_.find(name);
    if (found == weights_.end())
      throw DamagedFile(model_state_.where() + ": the weights of " + name + " are missing");
    return Value(widened(found->second)).named(name);
  }

  // Returns elements [begin, ...) of the weights, as a tensor of this shape.
  Value weight(const std::string& name, int64_t begin, const Shape& shape) const {
    const Value all = weight(name);
    const TensorRecord& whole = all.as_tensor();
    if (whole.shape == shape) return all;
    if (begin + numel(shape) > whole.numel())
      all.fail(std::to_string(begin + numel(shape)) + " elements at least");
    return Value(whole.slice(begin, shape)).named(all.where());
  }

  Value state(int64_t index) const {
    const auto found = states_.find(index);
    return found == states_.end() ? Value() : found->second;
  }

  ShardedCheckpoint& source_;
  int mp_, ep_rank_;
  bool module_order_;
  Value model_state_, optimizer_, torch_, flat_, unfused_;  // flat_, unfused_: masters
  States states_;  // the optimizer's, by parameter or group
  Weights weights_;
};

}  // namespace

void read_zero0(ShardedCheckpoint& source, const ExpertOptimizers& experts, bool module_order) {
  try {
    std::set<std::pair<int, int>> known;  // stages and ep ranks: several tp ranks may have experts
    for (int mp = 0; mp < source.tp_size * source.pp_size; ++mp) {
      const auto found = experts.find(mp);
      auto optimizers = found == experts.end() ? ExpertOptimizers::mapped_type() : found->second;
      if (optimizers.empty())
        optimizers = {{0, source.model_states[static_cast<size_t>(mp)].at(keys::kOptimizer)}};
      for (const auto& [ep, optimizer] : optimizers) {
        const bool first = &optimizer == &optimizers[0].second;
        // Without experts' files, and where tp cuts experts, each tp rank has its own part of them.
        const int holder = source.experts.whole ? mp / source.tp_size : mp;
        RankReader reader(source, mp, optimizer, ep, module_order);
        reader.read(first, known.insert({holder, ep}).second);
        if (first && source.states_refused.empty() &&
            rank_with_all_groups(source) + 1 == source.groups.size())
          source.optimizer_state = reader.optimizer_state();
      }
    }
    if (source.parameters.empty()) read_weights(source);  // an optimizer without states
  } catch (const Unproven& error) {
    source.parameters.clear();
    source.states_refused = error.what();
    read_weights(source);
  }
}

}  // namespace anymesh
