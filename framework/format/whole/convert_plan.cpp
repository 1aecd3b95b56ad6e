#include "framework/format/whole/convert_plan.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "framework/format/sharded/tensor_views.h"
#include "framework/util/errors.h"

namespace anymesh {
namespace {

using RuleKind = MergeRule::Kind;

constexpr std::string_view kRuleNames[] = {"replicated",     kAverageRule,  "two sub-parameters",
                                           "sub-parameters", "concatenate", "affine map"};

using Shards = std::vector<const ParameterShard*>;  // one stage's, by tp rank

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

// Plans one parameter at a time.
class Planner {
 public:
  Planner(const ShardedCheckpoint& source, const UniversalInfo& info)
      : source_(source), info_(info), rules_(info) {}

  ConvertPlan run() {
    for (const auto& [name, shards] : source_.parameters) plan_parameter(name, shards);
    plan_others();
    plan_.unused_patterns = rules_.unused();
    return std::move(plan_);
  }

 private:
  void plan_parameter(const std::string& name, const std::vector<ParameterShard>& all) {
    MergeRule rule = rules_.classify(name);
    if (source_.tp_size == 1 && !info_.has_row_parallel && is_megatron_row_parallel(name))
      rule.cat_dim = 1;
    // DeepSpeed's own pipelines publish no patterns. The name marks a tied layer, and all stages
    // hold equal copies.
    const bool tied = !info_.has_pipeline_replicated && name.starts_with(kTiedModules);
    rule.pipeline_replicated |= tied;
    const bool once = source_.experts.whole && source_.experts.is_expert(name);
    const auto stages = select_shards(name, all, rule, once ? 1 : source_.tp_size, tied);
    const Shards& shards = stages[0];
    ++plan_.parameters;
    for (const std::string& state : states_of(shards)) plan_state(name, rule, stages, state);
    for (const ParameterShard* shard : shards) {
      const Value &step = shard->step, &first = shards[0]->step;
      const bool same =
          step && first ? step.as_double() == first.as_double() : step.is_none() == first.is_none();
      if (!same) step.fail("step " + first.found() + " for " + name + ", as on tp rank 0");
    }
    if (const Value& step = shards[0]->step) {
      plan_.files.push_back({.parameter = name, .state = std::string(kStepState), .content = step});
    }
  }

  // A tied layer has one copy a stage; the copies must be equal.
  void plan_state(const std::string& name, const MergeRule& rule, const std::vector<Shards>& stages,
                  const std::string& state) {
    std::vector<std::pair<int, ShardFragment>> sources;
    std::vector<TensorRecord> copies;
    for (const Shards& shards : stages) {
      for (const ParameterShard* shard : shards) check_covered(name, *shard, state);
      copies.push_back(merge(name, rule, shards, state));
      if (copies.back().shape != copies[0].shape || copies.back().dtype != copies[0].dtype)
        throw DamagedFile(name + ": pipeline stages have it as " + Value(copies[0]).found() +
                          " and as " + Value(copies.back()).found());
    }
    for (const ParameterShard* shard : stages[0]) {
      for (const ShardFragment& fragment : shard->states.find(state)->second.fragments) {
        sources.emplace_back(shard->tp_rank, fragment);
        plan_.elements += fragment.numel;
      }
    }
    TensorRecord tensor = copies[0];
    if (copies.size() > 1) {
      std::vector<BytesPtr> bytes;
      for (const TensorRecord& copy : copies) bytes.push_back(copy.bytes);
      tensor.bytes = replicated(name + " (" + state + ")", bytes, tensor.dtype, "pipeline stages");
    }
    const CutRule cut = shape_of(name, rule, stages[0]).cut;
    add_file({.parameter = name,
              .state = state,
              .rule = std::string(kRuleNames[static_cast<int>(rule.kind)]),
              .cut = cut,
              .sources = std::move(sources)},
             tensor, merge_keys(rule, cut));
    if (const auto* layer = source_.experts.layer_of(name)) mark_experts(layer->experts);
  }

  // Whatever tp did before, other keys describe an expert's parameter.
  void mark_experts(int64_t count) {
    Value& content = plan_.files.back().content;
    std::vector<Value::Entry> entries = expert_keys(count);
    entries.emplace(entries.begin(), keys::kParam, content.at(keys::kParam));
    content = Value::dict(std::move(entries));
  }

  // Adds a file with this tensor beside the keys in `entries`.
  void add_file(OutputFilePlan file, const TensorRecord& tensor,
                std::vector<Value::Entry> entries) {
    entries.emplace_back(keys::kParam, tensor);
    file.content = Value::dict(std::move(entries));
    file.bytes = tensor.nbytes();
    plan_.files.push_back(std::move(file));
  }

  MergeShape shape_of(const std::string& name, const MergeRule& rule, const Shards& shards) const {
    std::vector<Shape> shapes;
    for (const ParameterShard* shard : shards) shapes.push_back(shard->shape);
    return merge_shape(name, rule, shapes, info_.original_vocab_size);
  }

  // Returns the full tensor of a state.
  TensorRecord merge(const std::string& name, const MergeRule& rule, const Shards& shards,
                     const std::string& state) const {
    const MergeShape merged = shape_of(name, rule, shards);
    const ShardState& first = shards[0]->states.find(state)->second;
    const DType dtype = first.dtype;
    if (first.factored) {
      if (shards.size() > 1 || merged.full != shards[0]->shape)
        throw Unreadable(name + ": nothing says how the shards of its factored state " + state +
                         " are merged");
      return {dtype, *first.factored, false, joined(*first.factored, first.fragments, dtype)};
    }
    const auto tp_size = static_cast<int>(shards.size());
    std::vector<MergedTensor::Part> parts;
    for (int rank = 0; rank < tp_size; ++rank) {
      const ShardState& own = shards[static_cast<size_t>(rank)]->states.find(state)->second;
      if (own.dtype != dtype) throw DamagedFile(name + ": tp ranks have different dtypes");
      const ShardLayout layout = ShardLayout::make(merged.full, merged.cut, tp_size, rank);
      if (merged.cut.pieces.empty()) {
        parts.push_back({layout, own.fragments});
      } else {
        append_pieces(parts, layout, name, state, own);
      }
    }
    TensorRecord tensor{dtype, merged.full, state == kFp32State && is_floating(dtype), nullptr};
    const std::string what = name + " (" + state + ")";
    if (tp_size == 1 || !merged.cut.replicated) {
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

  // Plans the model's tensors that are not optimized parameters: frozen parameters, second names of
  // tied ones, and buffers.
  void plan_others() {
    const auto& ranks = source_.model_tensors;
    if (ranks.empty()) return;
    const std::set<std::string> buffers = buffer_names(source_);
    for (size_t i = 0; i < ranks[0].size(); ++i) {
      const std::string& name = ranks[0][i].first;
      if (source_.parameters.contains(name)) continue;
      std::vector<TensorRecord> shards;
      for (const auto& rank : ranks) {
        if (i >= rank.size() || rank[i].first != name)
          throw DamagedFile(name + ": not all tp ranks have it in the same place");
        shards.push_back(rank[i].second);
      }
      plan_other(name, shards, buffers.contains(name));
    }
  }

  // A second name is cut as the first, which alone has a pattern in AutoTP's checkpoints.
  std::string first_name(const std::string& name) const {
    const Value shared = source_.model_states[0].find(keys::kSharedParams);
    const Value first = shared ? shared.find(name) : Value();
    return first ? first.as_string() : name;
  }

  // Untrained tensors keep their bits, except that half precision becomes float32.
  void plan_other(const std::string& name, std::vector<TensorRecord> tensors, bool is_buffer) {
    MergeRule rule = rules_.classify(first_name(name));
    if (is_buffer) {
      tensors.resize(1);
      rule = {.kind = RuleKind::kReplicated};
    }
    const std::string fp32(kFp32State);
    std::vector<ParameterShard> shards(tensors.size());
    Shards pointers;
    std::vector<std::pair<int, ShardFragment>> sources;
    for (size_t rank = 0; rank < tensors.size(); ++rank) {
      const TensorRecord whole = widened(tensors[rank]);
      shards[rank].shape = whole.shape;
      shards[rank].states[fp32] = {whole.dtype, {{0, 0, whole.numel(), whole.bytes}}};
      pointers.push_back(&shards[rank]);
      sources.emplace_back(static_cast<int>(rank), shards[rank].states[fp32].fragments[0]);
    }
    TensorRecord tensor = merge(name, rule, pointers, fp32);
    tensor.requires_grad = tensors[0].requires_grad;
    // DeepSpeed writes no keys here. Its loader then assumes a cut along dim 0 where shapes differ.
    const bool needs_keys =
        rule.cat_dim != 0 || rule.vocabulary || rule.kind == RuleKind::kTwoSubParams;
    add_file({.parameter = name,
              .state = fp32,
              .rule = "model weights",
              .cut = shape_of(name, rule, pointers).cut,
              .sources = std::move(sources)},
             tensor, needs_keys ? merge_keys(rule) : std::vector<Value::Entry>{});
    ++plan_.parameters;
    plan_.elements += tensor.numel();
  }

  const ShardedCheckpoint& source_;
  const UniversalInfo& info_;
  MergeRules rules_;
  ConvertPlan plan_;
};

}  // namespace

UniversalInfo merge_info(const ShardedCheckpoint& source, const std::string& remedy) {
  const Value& state = source.model_states[0];
  if (const Value info = state.find(keys::kUniversalInfo)) return UniversalInfo::from_value(info);
  if (source.tp_size > 1) {
    throw Unreadable(state.where() + ": has no '" + std::string(keys::kUniversalInfo) +
                     "', so nothing says how the shards of tp " + std::to_string(source.tp_size) +
                     " are merged" + remedy);
  }
  return {};
}

ConvertPlan plan_conversion(const ShardedCheckpoint& source, const UniversalInfo& info) {
  try {
    return Planner(source, info).run();
  } catch (const DamagedFile& error) {  // mostly names a parameter, not the folder
    const std::string what = error.what(), folder = source.folder.string();
    if (folder.empty() || what.starts_with(folder)) throw;
    throw DamagedFile(folder + ": " + what);
  }
}

std::string ConvertPlan::to_json() const {
  using Json = nlohmann::ordered_json;
  Json plan = {{"parameters", parameters}, {"elements", elements}, {"files", Json::array()}};
  for (const OutputFilePlan& file : files) {
    Json item = {{"parameter", file.parameter}, {"state", file.state}, {"bytes", file.bytes}};
    if (!file.rule.empty()) item["rule"] = file.rule;
    if (file.content.is_dict()) item["shape"] = file.content.at(keys::kParam).as_tensor().shape;
    for (const auto& [tp_rank, fragment] : file.sources) {
      item["sources"].push_back({{"tp_rank", tp_rank},
                                 {"dp_rank", fragment.dp_rank},
                                 {"begin", fragment.begin},
                                 {"numel", fragment.numel}});
    }
    plan["files"].push_back(std::move(item));
  }
  return plan.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace anymesh
