#include "framework/format/checkpoint/merge.h"

#include <algorithm>

#include "framework/format/sharded/tensor_views.h"
#include "framework/util/errors.h"

namespace anymesh {
namespace {

using RuleKind = MergeRule::Kind;

constexpr std::string_view kAverageRule = "average", kUntrainedRule = "model weights";
constexpr std::string_view kRuleNames[] = {"replicated",     kAverageRule,  "two sub-parameters",
                                           "sub-parameters", "concatenate", "affine map"};

using Shards = std::vector<const ParameterShard*>;

// Returns the shards, by tp rank, of the first stage that has the parameter. With `copies`, returns
// the shards of every stage that has it.
std::vector<Shards> select_shards(const std::string& name,
                                  const std::vector<ParameterShard>& shards, const MergeRule& rule,
                                  int tp_size, bool copies) {
  std::map<int, Shards> stages;
  for (const ParameterShard& shard : shards) {
    Shards& stage = stages[shard.pp_rank];
    stage.resize(static_cast<size_t>(tp_size));
    stage[static_cast<size_t>(shard.tp_rank)] = &shard;
  }
  if (stages.size() > 1 && !rule.pipeline_replicated) {
    throw DamagedFile(name + ": pipeline stages " + std::to_string(stages.begin()->first) +
                      " and " + std::to_string(std::next(stages.begin())->first) +
                      " both have it, but no pattern in " +
                      std::string(keys::kPipelineReplicatedPatterns) + " matches it");
  }
  std::vector<Shards> selected;
  for (const auto& [pp, stage] : stages) {
    if (!selected.empty() && !copies) break;
    for (size_t rank = 0; rank < stage.size(); ++rank) {
      if (!stage[rank])
        throw DamagedFile(name + ": tp rank " + std::to_string(rank) + " does not have it");
    }
    selected.push_back(stage);
  }
  return selected;
}

// Returns the names of the states, fp32 first.
std::vector<std::string> states_of(const Shards& shards) {
  std::set<std::string> names;
  for (const ParameterShard* shard : shards)
    for (const auto& [name, state] : shard->states) names.insert(name);
  std::vector<std::string> states;
  if (names.erase(std::string(kFp32State)) > 0) states.emplace_back(kFp32State);
  states.insert(states.end(), names.begin(), names.end());
  return states;
}

// Returns a state out of the copies that `ranks` have; they must be equal.
TensorRecord one_of(const std::string& what, const std::string& name,
                    const std::vector<TensorRecord>& copies, const std::string& ranks) {
  TensorRecord tensor = copies[0];
  std::vector<BytesPtr> bytes;
  for (const TensorRecord& copy : copies) {
    if (copy.shape != tensor.shape || copy.dtype != tensor.dtype)
      throw DamagedFile(name + ": " + ranks + " have it as " + Value(tensor).found() + " and as " +
                        Value(copy).found());
    bytes.push_back(copy.bytes);
  }
  if (copies.size() > 1) tensor.bytes = replicated(what, bytes, tensor.dtype, ranks);
  return tensor;
}

}  // namespace

TensorRecord SavedParameter::state(std::string_view name) const {
  const auto found = states.find(name);
  return found == states.end() ? TensorRecord() : found->second;
}

bool SavedParameter::averaged() const { return rule == kAverageRule; }

bool SavedParameter::is_replicated() const { return rule == kRuleNames[0]; }

int64_t SavedParameter::elements() const {
  if (rule == kUntrainedRule) return numel(shape);
  int64_t count = 0;
  for (const ParameterShard& shard : *shards) {
    if (shard.pp_rank != shards->front().pp_rank) continue;
    for (const auto& [name, held] : shard.states)
      for (const ShardFragment& fragment : held.fragments) count += fragment.numel;
  }
  return count;
}

ShardLayout SavedParameter::slice(int tp_rank) const {
  return ShardLayout::make(shape, cut, shards->back().tp_rank + 1, tp_rank);
}

ShardLayout SavedParameter::slice(int tp_rank, int tp_size) const {
  if (tp_size == shards->back().tp_rank + 1) return slice(tp_rank);
  const CutRule rule = tp_size == 1 ? CutRule{.replicated = true} : cut.even();
  return ShardLayout::make(shape, rule, tp_size, tp_rank);
}

UniversalInfo merge_info(const ShardedCheckpoint& ranks, const std::string& remedy) {
  const Value& state = ranks.model_states[0];
  if (const Value info = state.find(keys::kUniversalInfo)) return UniversalInfo::from_value(info);
  if (ranks.tp_size > 1) {
    throw Unreadable(state.where() + ": has no '" + std::string(keys::kUniversalInfo) +
                     "', so nothing says how the shards of tp " + std::to_string(ranks.tp_size) +
                     " are merged" + remedy);
  }
  return {};
}

Merger::Merger(std::shared_ptr<const ShardedCheckpoint> ranks, UniversalInfo info)
    : ranks_(std::move(ranks)),
      info_(std::move(info)),
      buffers_(buffer_names(*ranks_)),
      rules_(info_) {
  for (const auto& [name, shards] : ranks_->parameters) names_.push_back(name);
  if (ranks_->model_tensors.empty()) return;
  const NamedTensors& first = ranks_->model_tensors[0];
  for (size_t i = 0; i < first.size(); ++i)
    if (!ranks_->parameters.contains(first[i].first) && others_.emplace(first[i].first, i).second)
      names_.push_back(first[i].first);
}

SavedParameter Merger::merged(const std::string& name) const {
  const auto shards = ranks_->parameters.find(name);
  if (shards == ranks_->parameters.end()) return untrained(name);
  return trained(name, ShardsPtr(ranks_, &shards->second));
}

void Merger::merge_all(const Take& take) const {
  for (const std::string& name : names_) {
    try {
      take(name, merged(name));
    } catch (const DamagedFile& error) {  // mostly names a parameter, not the folder
      const std::string what = error.what(), folder = ranks_->folder.string();
      if (folder.empty() || what.starts_with(folder)) throw;
      throw DamagedFile(folder + ": " + what);
    }
  }
}

MergeRule Merger::rule_of(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const auto [known, is_new] = known_rules_.try_emplace(name);
  if (is_new) {
    try {
      known->second = rules_.classify(name);
    } catch (...) {
      known_rules_.erase(known);
      throw;
    }
  }
  return known->second;
}

SavedParameter Merger::trained(const std::string& name, const ShardsPtr& all) const {
  MergeRule rule = rule_of(name);
  if (ranks_->tp_size == 1 && !info_.has_row_parallel && is_megatron_row_parallel(name))
    rule.cat_dim = 1;
  // DeepSpeed's own pipelines publish no patterns. The name marks a tied layer, and all stages hold
  // equal copies.
  const bool tied = !info_.has_pipeline_replicated && name.starts_with(kTiedModules);
  rule.pipeline_replicated |= tied;
  const bool once = ranks_->experts.whole && ranks_->experts.is_expert(name);
  const auto stages = select_shards(name, *all, rule, once ? 1 : ranks_->tp_size, tied);
  const Shards& shards = stages[0];
  SavedParameter parameter{.step = shards[0]->step, .shards = all};
  parameter.rule = kRuleNames[static_cast<int>(rule.kind)];
  std::vector<MergeShape> shapes;
  for (const Shards& stage : stages) shapes.push_back(shape_of(name, rule, stage));
  parameter.shape = shapes[0].full;
  parameter.cut = shapes[0].cut;
  for (const std::string& state : states_of(shards)) {
    std::vector<TensorRecord> copies;  // a tied layer has one on each stage
    for (size_t i = 0; i < stages.size(); ++i) {
      for (const ParameterShard* shard : stages[i])
        if (ranks_->all_names.empty()) check_covered(name, *shard, state);
      copies.push_back(merge(name, rule, shapes[i], all, stages[i], state));
    }
    parameter.states[state] = one_of(name + " (" + state + ")", name, copies, "pipeline stages");
  }
  for (const ParameterShard* shard : shards) {
    const Value &step = shard->step, &first = parameter.step;
    const bool same =
        step && first ? step.as_double() == first.as_double() : step.is_none() == first.is_none();
    if (!same) step.fail("step " + first.found() + " for " + name + ", as on tp rank 0");
  }
  for (const ParameterShard& shard : *all)
    if (shard.tp_rank == 0) parameter.pp_ranks.push_back(shard.pp_rank);
  // Whatever tp did before, other keys describe an expert's parameter.
  const auto* layer = ranks_->experts.layer_of(name);
  parameter.keys =
      Value::dict(layer ? expert_keys(layer->experts) : merge_keys(rule, parameter.cut));
  if (ranks_->states_refused.empty()) add_whole_states(parameter, name);
  return parameter;
}

void Merger::add_whole_states(SavedParameter& parameter, const std::string& name) const {
  std::map<std::string, std::vector<TensorRecord>> copies;
  for (const Value& state : ranks_->model_states)
    if (const Value all = state.find(keys::kWholeStates); all && all.contains(name))
      for (const auto& [key, tensor] : all.at(name).entries()) {
        if (!key.is_string() || !is_state_name(key.as_string()) ||
            parameter.states.contains(key.as_string()))
          all.at(name).fail("states of " + name + " by names of their own, not " + key.found());
        copies[key.as_string()].push_back(tensor.as_tensor());
      }
  for (const auto& [state, tensors] : copies) {
    parameter.states[state] =
        one_of(name + " (" + state + ")", name, tensors, "model-parallel ranks");
    parameter.whole.insert(state);
  }
}

// Untrained tensors keep their bits, except that half precision becomes float32.
SavedParameter Merger::untrained(const std::string& name) const {
  const size_t place = others_.at(name);
  // A second name is cut as the first, which alone has a pattern in AutoTP's checkpoints.
  const Value shared = ranks_->model_states[0].find(keys::kSharedParams),
              first = shared ? shared.find(name) : Value();
  MergeRule rule = rule_of(first ? first.as_string() : name);
  const bool is_buffer = buffers_.contains(name);
  if (is_buffer) rule = {.kind = RuleKind::kReplicated};
  SavedParameter parameter{.rule = kUntrainedRule};
  const auto all = std::make_shared<std::vector<ParameterShard>>();
  for (size_t tp = 0; tp < ranks_->model_tensors.size(); ++tp) {
    const NamedTensors& tensors = ranks_->model_tensors[tp];
    if (place >= tensors.size() || tensors[place].first != name)
      throw DamagedFile(name + ": not all tp ranks have it in the same place");
    if (is_buffer && tp > 0) continue;
    const TensorRecord own = widened(tensors[place].second);
    ParameterShard& shard =
        all->emplace_back(ParameterShard{.tp_rank = static_cast<int>(tp), .shape = own.shape});
    shard.states[std::string(kFp32State)] = {own.dtype, {{0, 0, own.numel(), own.bytes}}};
  }
  Shards shards;
  for (const ParameterShard& shard : *all) shards.push_back(&shard);
  parameter.shards = all;
  const MergeShape merged = shape_of(name, rule, shards);
  parameter.shape = merged.full;
  parameter.cut = merged.cut;
  const std::string fp32(kFp32State);
  TensorRecord& tensor = parameter.states[fp32] = merge(name, rule, merged, all, shards, fp32);
  tensor.requires_grad = ranks_->model_tensors[0][place].second.requires_grad;
  // DeepSpeed writes no keys here. Its loader then assumes a cut along dim 0 where shapes differ.
  const bool needs_keys =
      rule.cat_dim != 0 || rule.vocabulary || rule.kind == RuleKind::kTwoSubParams;
  parameter.keys = Value::dict(needs_keys ? merge_keys(rule) : std::vector<Value::Entry>{});
  return parameter;
}

MergeShape Merger::shape_of(const std::string& name, const MergeRule& rule,
                            const Shards& shards) const {
  std::vector<Shape> shapes;
  for (const ParameterShard* shard : shards) shapes.push_back(shard->shape);
  return merge_shape(name, rule, shapes, info_.original_vocab_size);
}

// Returns the uncut tensor of a state.
TensorRecord Merger::merge(const std::string& name, const MergeRule& rule, const MergeShape& to,
                           const ShardsPtr& all, const Shards& shards,
                           const std::string& state) const {
  const ShardState& first = shards[0]->states.find(state)->second;
  const DType dtype = first.dtype;
  if (first.factored) {
    if (shards.size() > 1 || to.full != shards[0]->shape)
      throw Unreadable(name + ": nothing says how the shards of its factored state " + state +
                       " are merged");
    return {dtype, *first.factored, false, joined(*first.factored, first.fragments, dtype)};
  }
  const auto tp_size = static_cast<int>(shards.size());
  std::vector<MergedTensor::Part> parts;
  for (int rank = 0; rank < tp_size; ++rank) {
    const ShardState& own = shards[static_cast<size_t>(rank)]->states.find(state)->second;
    if (own.dtype != dtype) throw DamagedFile(name + ": tp ranks have different dtypes");
    const ShardLayout layout = ShardLayout::make(to.full, to.cut, tp_size, rank);
    const FragmentsPtr fragments(all, &own.fragments);
    if (to.cut.pieces.empty()) {
      parts.push_back({layout, fragments});
    } else {
      append_pieces(parts, layout, name, state, fragments, dtype);
    }
  }
  TensorRecord tensor{dtype, to.full, state == kFp32State && is_floating(dtype), nullptr};
  const std::string what = name + " (" + state + ")";
  if (tp_size == 1 || !to.cut.replicated) {
    tensor.bytes = std::make_shared<MergedTensor>(std::move(parts), dtype, what);
    return tensor;
  }
  std::vector<BytesPtr> replicas;
  for (auto& part : parts) {
    replicas.push_back(std::make_shared<MergedTensor>(std::vector{std::move(part)}, dtype));
  }
  if (rule.kind != RuleKind::kAverage) {
    tensor.bytes = replicated(what, replicas, dtype, "tp ranks");
  } else if (dtype == DType::kFloat32) {
    tensor.bytes = averaged(replicas);
  } else {
    throw DamagedFile(name + ": only float32 parameters can be averaged");
  }
  return tensor;
}

}  // namespace anymesh
