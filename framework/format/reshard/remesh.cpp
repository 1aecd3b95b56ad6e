#include <algorithm>

#include "framework/format/layout/merge_rules.h"
#include "framework/format/layout/partition.h"
#include "framework/format/reshard/uncut_model.h"
#include "framework/format/sharded/stages.h"
#include "framework/format/sharded/tensor_views.h"
#include "framework/util/errors.h"
#include "framework/util/printable.h"

namespace anymesh {
namespace {

using Parameter = RankModel::Parameter;
using Kind = MergeRule::Kind;

// Returns elements [offset, ...) of a shard, read from the full tensor piece by piece. Padding is
// zero.
BytesPtr cut_out(const TensorRecord& full, const ShardLayout& layout) {
  // Elements at a time, so that at most 128 Ki are read to find them among others.
  const int64_t around_all = std::max<int64_t>(1, layout.full_numel()),
                most = std::max<int64_t>(1024, (128 << 10) * layout.shard_numel() / around_all);
  const uint64_t size = element_size(full.dtype);
  const auto bytes = [size](int64_t elements) { return static_cast<uint64_t>(elements) * size; };
  const auto read = [=](uint64_t offset, std::span<std::byte> out) {
    std::ranges::fill(out, std::byte{});
    const auto begin = static_cast<int64_t>(offset / size),
               end = begin + static_cast<int64_t>(out.size() / size);
    std::vector<std::byte> around;
    for (int64_t first = begin; first < end; first += most) {
      const int64_t count = std::min(most, end - first);
      int64_t low = INT64_MAX, high = 0;  // the elements are in [low, high) of the full tensor
      layout.for_each_run(first, count, [&](int64_t from, int64_t, int64_t n) {
        low = std::min(low, from);
        high = std::max(high, from + n);
      });
      if (low >= high) continue;
      around.resize(bytes(high - low));
      full.bytes->read(bytes(low), around);
      layout.for_each_run(first, count, [&](int64_t from, int64_t to, int64_t n) {
        std::copy_n(around.data() + bytes(from - low), bytes(n), out.data() + bytes(to - begin));
      });
    }
  };
  return std::make_shared<ComputedBytes>(bytes(layout.shard_numel()), "a cut tensor", read);
}

// Megatron publishes the patterns of tensor parallelism at tp > 1 alone. These are its names.
bool is_megatron_replicated(const std::string& name) {
  const auto ends = [&](const char* end) { return name.ends_with(end); };
  const std::string within = layer_name(name).name;
  return ends("layernorm.weight") || ends("layernorm.bias") || ends("self_attention.dense.bias") ||
         ends("mlp.dense_4h_to_h.bias") || ends("position_embeddings.weight") ||
         within == "weight" || within == "bias";
}

// Orders the names of a layer as its module has them: readers of ZeRO 0 rely on that.
std::pair<size_t, std::string> place_in_layer(const std::string& name) {
  constexpr std::string_view kModules[] = {
      "word_embeddings.",      "position_embeddings.",
      "input_layernorm.",      "self_attention.query_key_value.",
      "self_attention.dense.", "post_attention_layernorm.",
      "mlp.dense_h_to_4h.",    "mlp.dense_4h_to_h."};
  size_t place = 0;
  while (place < std::size(kModules) && !name.starts_with(kModules[place])) ++place;
  return {2 * place + name.ends_with("bias"), name};
}

// How tp of the new mesh cuts each parameter.
class Cuts {
 public:
  Cuts(const UncutModel& model, int tp_size)
      : tp_size_(tp_size),
        info_(info_of(model)),
        rules_(info_),
        experts_(ExpertSpread::from(model.checkpoint.model_states)) {
    const Value args = model.checkpoint.model_states[0].find(keys::kArgs).value_or(Value::dict());
    vocabulary_multiple_ = args.find("make_vocab_size_divisible_by").value_or(128).as_int();
  }

  // Returns the cut of a whole tensor. Throws a UserError if tp does not divide it.
  ShardLayout layout(const std::string& name, const Shape& shape, int tp_rank) {
    try {
      return ShardLayout::make(shape, rule_of(name, shape), tp_size_, tp_rank);
    } catch (const std::exception& error) {
      throw UserError("--target: tp=" + std::to_string(tp_size_) + " cannot cut " +
                      printable(name) + " of shape " + to_string(shape) + ": " + error.what());
    }
  }

  // Adds to a universal_checkpoint_info of tp 1 the patterns that it needs at other tp.
  void publish(Value& info, const UncutModel& model) {
    if (tp_size_ == 1) return;
    const std::vector<std::string>& names = model.checkpoint.names();
    publish_experts(info, model);
    if (info_.has_row_parallel) return;
    std::set<std::string> replicated, row_parallel;
    for (const std::string& name : names) {
      if (is_megatron_replicated(name)) replicated.insert(pattern_of(name));
      if (is_megatron_row_parallel(name)) row_parallel.insert(pattern_of(name));
    }
    const auto list = [](const auto& set) { return Value::list({set.begin(), set.end()}); };
    info.set(keys::kTpReplicatedPatterns, list(replicated))
        .set(keys::kRowParallelPatterns, list(row_parallel));
  }

  // The patterns of stacked experts: w1 and w3 [E, f, h], w2 [E, h, f]. tp cuts f.
  void publish_experts(Value& info, const UncutModel& model) {
    const auto add = [&](std::string_view key, const Value& item) {
      Value list = info.find(key).value_or(Value::list());
      for (const Value& known : list.items())
        if (known == item) return;
      list.push_back(item);
      info.set(key, list);
    };
    for (const std::string& name : model.checkpoint.names()) {
      if (!experts_.layer_of(name)) continue;
      const std::string pattern = pattern_of(name);
      if (cut_of_expert(name) == 1) {
        add(keys::kRowParallelPatterns, Value(pattern));
      } else {
        const Shape shape = model.checkpoint.parameter(name).shape;
        add(keys::kSubParams, UniversalInfo::whole_cut(pattern, shape, 2).source);
      }
    }
  }

  bool is_tied(const std::string& name) { return rules_.classify(name).pipeline_replicated; }
  int64_t padded_rows() const {
    const int64_t multiple = vocabulary_multiple_ * tp_size_;
    return (info_.original_vocab_size.value_or(0) + multiple - 1) / multiple * multiple;
  }

 private:
  static UniversalInfo info_of(const UncutModel& model) {
    const Value info = model.checkpoint.model_states[0].find(keys::kUniversalInfo);
    return info ? UniversalInfo::from_value(info) : UniversalInfo();
  }

  CutRule rule_of(const std::string& name, const Shape& shape) {
    if (experts_.layer_of(name) && tp_size_ > 1) return {.dim = cut_of_expert(name)};
    const MergeRule rule = rules_.classify(name);
    const bool unsaid = !info_.has_row_parallel;  // saved at tp 1
    if (tp_size_ == 1 && !rule.vocabulary) return {.replicated = true};
    if (rule.kind == Kind::kReplicated || rule.kind == Kind::kAverage ||
        (unsaid && is_megatron_replicated(name)))
      return {.replicated = true};
    CutRule cut{.dim = rule.cat_dim};
    if (unsaid && is_megatron_row_parallel(name)) cut.dim = 1;
    if (rule.kind == Kind::kTwoSubParams) cut.parts = {shape.at(0) / 2, shape.at(0) / 2};
    if (rule.kind == Kind::kSubParams) {
      cut.dim = rule.sub_params->partition_dim;
      cut.parts = rule.sub_params->shape[static_cast<size_t>(cut.dim)];
    }
    if (rule.vocabulary) cut.padded = padded_rows();
    return cut;
  }

  static int cut_of_expert(const std::string& name) { return name.ends_with(".w2") ? 2 : 1; }

  int tp_size_;
  UniversalInfo info_;
  MergeRules rules_;
  ExpertSpread experts_;
  int64_t vocabulary_multiple_;
};

// Returns a rank's shard of a parameter.
Parameter cut_parameter(const SavedParameter& whole, const std::string& name,
                        const ShardLayout& layout) {
  Parameter parameter{name, layout.shard_shape(), {}, whole.step, {}};
  for (const auto& [state, tensor] : whole.states)
    if (!whole.whole.contains(state))
      parameter.states[state] = {tensor.dtype, layout.shard_shape(), state == kFp32State,
                                 cut_out(tensor, layout)};
  return parameter;
}

// Returns a state entry with these states, in torch's order.
Value entry_of(const Parameter& parameter) {
  if (parameter.states.size() == 1 && !parameter.step) return {};
  Value entry = Value::dict();
  if (parameter.step) entry.set(kStepState, parameter.step);
  for (const auto& [key, number] : parameter.numbers) entry.set(key, number);
  for (const auto& [state, tensor] : parameter.states)
    if (state != kFp32State) entry.set(state, tensor);
  return entry;
}

// The source's metadata for a rank of the new mesh.
Value metadata_for(const UncutModel& model, const CheckpointMesh& to, int pp, int tp, Cuts& cuts) {
  const CheckpointMesh& from = model.mesh;
  const int near = std::min(pp, from.pp_size - 1) * from.tp_size + tp % from.tp_size;
  Value state = model.checkpoint.model_states.at(static_cast<size_t>(near));
  Value info = state.find(keys::kUniversalInfo);
  if (from.tp_size == to.tp_size || !info) return state;
  cuts.publish(info, model);
  if (info.find(keys::kPaddedVocabSize)) info.set(keys::kPaddedVocabSize, cuts.padded_rows());
  state.set(keys::kUniversalInfo, info);
  Value args = state.find(keys::kArgs).value_or(Value::dict());
  if (args.find(keys::kPaddedVocabSize))
    state.set(keys::kArgs, args.set(keys::kPaddedVocabSize, cuts.padded_rows()));
  return state;
}

// Builds the ranks one by one.
class Builder {
 public:
  Builder(const UncutModel& model, const CheckpointMesh& to)
      : model_(model),
        to_(to),
        cuts_(model, to.tp_size),
        experts_(ExpertSpread::from(model.checkpoint.model_states)),
        pipeline_(is_pipeline(model.checkpoint.model_states[0], model.checkpoint.names().at(0))) {
    for (const Value& state : model.checkpoint.model_states) buffers_.merge(buffer_names(state));
    for (const auto& names : model.groups) trained_.insert(names.begin(), names.end());
    if (to.pp_size == 1) return;
    const Value args = model.checkpoint.model_states[0].find(keys::kArgs).value_or(Value::dict());
    num_layers_ = static_cast<int>(args.at("num_layers").as_int());
    if (to.pp_size > num_layers_)
      throw UserError("--target: pp=" + std::to_string(to.pp_size) + " stages have only " +
                      std::to_string(num_layers_) + " layers");
  }

  RankModel rank(int pp, int tp) {
    RankModel rank{.pp_rank = pp, .tp_rank = tp};
    rank.model_state = metadata_for(model_, to_, pp, tp, cuts_);
    rank.buffers = buffers_;
    rank.model_state.erase(keys::kWholeStates);
    for (size_t g = 0; g < model_.groups.size(); ++g) add_group(rank, g);
    pipeline_ ? add_layers(rank) : add_module(rank);
    add_experts(rank, to_, [&](const TensorRecord& master, const std::string&) {
      return rounded(master, to_.dtype);
    });
    return rank;
  }

 private:
  // Whether a stage has a parameter: of its layers, or of layers that it shares.
  bool stage_has(int pp, const std::string& name) {
    if (to_.pp_size == 1) return true;
    const bool last = pp == to_.pp_size - 1;
    if (name.starts_with(kTiedModules) && cuts_.is_tied(name)) return pp == 0 || last;
    const int layer = layer_name(name).layer - kEmbeddingLayer - 1;
    if (layer < 0) return pp == 0;
    if (layer >= num_layers_) return last;
    const LayerRange range = layers_of_stage(num_layers_, to_.pp_size, pp);
    return range.begin <= layer && layer < range.end;
  }

  void add_group(RankModel& rank, size_t g) {
    RankModel::Group group{{}, model_.settings[g], {}};
    std::vector<std::string> names;
    for (const std::string& name : model_.groups[g])
      if (stage_has(rank.pp_rank, name)) names.push_back(name);
    if (pipeline_)  // tied layers come first, then the others by number
      std::ranges::stable_sort(names, {}, [](const std::string& name) {
        return name.starts_with(kTiedModules) ? -1 : layer_name(name).layer;
      });
    for (const std::string& name : names) {
      const SavedParameter whole = model_.checkpoint.parameter(name);
      group.parameters.push_back(
          cut_parameter(whole, name, cuts_.layout(name, whole.shape, rank.tp_rank)));
      add_whole_states(rank, name, whole);
      for (const auto& [key, number] : model_.numbers[g].value_or(Value::dict()).entries())
        if (key != Value(kStepState) && is_single(number))
          group.parameters.back().numbers[key.as_string()] = number;
    }
    if (!group.parameters.empty()) group.entry = entry_of(group.parameters[0]);
    group.experts = !names.empty() && experts_.layer_of(names[0]);
    rank.groups.push_back(std::move(group));
  }

  void add_whole_states(RankModel& rank, const std::string& name, const SavedParameter& saved) {
    if (saved.whole.empty()) return;
    Value own = Value::dict();
    for (const std::string& state : saved.whole) own.set(state, saved.state(state));
    Value all = rank.model_state.find(keys::kWholeStates).value_or(Value::dict());
    rank.model_state.set(keys::kWholeStates, all.set(name, own));
  }

  // Returns a tensor in the model's precision. Buffers keep their own.
  TensorRecord weight(const RankModel& rank, const std::string& name) {
    const SavedParameter whole = model_.checkpoint.parameter(name);
    const ShardLayout layout = buffers_.contains(name)
                                   ? ShardLayout::make(whole.shape, {.replicated = true}, 1, 0)
                                   : cuts_.layout(name, whole.shape, rank.tp_rank);
    const TensorRecord full = whole.weight(),
                       shard{full.dtype, layout.shard_shape(), false, cut_out(full, layout)};
    if (buffers_.contains(name) || !is_floating(full.dtype)) return shard;
    return rounded(shard, to_.dtype);
  }

  void add_layers(RankModel& rank) {
    rank.model_state.set(keys::kModule, {});
    std::vector<std::string> buffers;
    for (const std::string& name : buffers_)
      if (stage_has(rank.pp_rank, name)) buffers.push_back(name);
    rank.model_state.set(keys::kBufferNames, Value::list_of(buffers));
    for (const std::string& name : model_.checkpoint.names()) {
      if (!stage_has(rank.pp_rank, name)) continue;
      if (experts_.layer_of(name) && trained_.contains(name)) continue;  // add_experts() does
      const TensorRecord tensor = weight(rank, name);
      if (!trained_.contains(name) && !buffers_.contains(name))
        rank.frozen.emplace_back(name, tensor);
      const auto [layer, within] = layer_name(name);
      const bool second = name.starts_with(kTiedModules) && rank.pp_rank > 0;
      if (to_.stage == 3) {
        rank.module.emplace_back(name, tensor);
      } else if (!second) {
        rank.layers[layer].emplace_back(within, tensor);
      }
    }
    for (auto& [layer, tensors] : rank.layers)
      std::ranges::sort(tensors, {}, [](const auto& entry) { return place_in_layer(entry.first); });
  }

  // The module keeps its order and its second names; its tensors are cut anew.
  void add_module(RankModel& rank) {
    rank.shared = recorded_shared(model_.checkpoint.model_states[0]);
    std::map<std::string, TensorRecord> made;
    for (const auto& [name, old] : module_tensors(rank.model_state)) {
      const std::string& first = rank.first_name(name);
      const auto [tensor, is_new] = made.try_emplace(first);
      if (is_new) tensor->second = weight(rank, first);
      rank.module.emplace_back(name, tensor->second);
      if (first == name && !trained_.contains(name) && !buffers_.contains(name))
        rank.frozen.emplace_back(name, tensor->second);
    }
  }

  const UncutModel& model_;
  const CheckpointMesh& to_;
  Cuts cuts_;
  ExpertSpread experts_;
  bool pipeline_;
  int num_layers_ = 0;
  std::set<std::string> buffers_, trained_;
};

// Returns notes on what Megatron-DeepSpeed's files do not tell, and another tp or pp needs.
std::vector<std::string> notes_on_megatron(const UncutModel& model, const CheckpointMesh& to) {
  std::vector<std::string> notes;
  const Value& state = model.checkpoint.model_states[0];
  if (state.find("rng_state"))
    notes.push_back(
        "rng_state: a rank has the random numbers of the source's nearest rank; "
        "Megatron-DeepSpeed seeds its ranks anew with --no-load-rng");
  const auto is_fused = [](const std::string& name) {
    return name.ends_with(".query_key_value.weight");
  };
  if (model.mesh.tp_size != to.tp_size && is_megatrons(state) &&
      std::ranges::any_of(model.checkpoint.names(), is_fused))
    notes.push_back(
        "query_key_value is cut as Megatron orders it: for each head or group its queries, key and "
        "value. Megatron-DeepSpeed since December 2024 keeps all queries, keys and values of a tp "
        "rank together, which nothing in the files tells: of such a checkpoint, only tp=" +
        std::to_string(model.mesh.tp_size) + " is good");
  const Value info = is_megatrons(state) ? state.find(keys::kUniversalInfo) : Value();
  const UniversalInfo sizes = info ? UniversalInfo::from_value(info) : UniversalInfo();
  if (sizes.padded_vocab_size.value_or(0) > sizes.original_vocab_size.value_or(0))
    notes.push_back(
        "rows " + std::to_string(*sizes.original_vocab_size) + " to " +
        std::to_string(*sizes.padded_vocab_size) +
        " of the vocabulary are padding, which takes part in Megatron-DeepSpeed's softmax: with "
        "another tp or pp they are zero, and the loss jumps. A change of dp keeps them");
  return notes;
}

}  // namespace

std::vector<RankModel> remeshed(const UncutModel& model, const CheckpointMesh& to,
                                std::vector<std::string>& notes) {
  const CheckpointMesh& from = model.mesh;
  const bool cut = from.tp_size != to.tp_size || from.pp_size != to.pp_size;
  if (cut && !model.checkpoint.model_states[0].find(keys::kArgs))
    throw UserError(
        "--target: tp and pp of a model that is not Megatron's or ours cannot be "
        "changed, since its files do not tell how; leave tp and pp out");
  if (from.pp_size != to.pp_size &&
      !is_pipeline(model.checkpoint.model_states[0], model.checkpoint.names().at(0)))
    throw UserError(
        "--target: this model was trained without a pipeline, and its parameters have "
        "other names than with one; leave pp out");
  if (cut)
    for (std::string& note : notes_on_megatron(model, to)) notes.push_back(std::move(note));
  Builder builder(model, to);
  std::vector<RankModel> ranks;
  for (int pp = 0; pp < to.pp_size; ++pp)
    for (int tp = 0; tp < to.tp_size; ++tp) ranks.push_back(builder.rank(pp, tp));
  return ranks;
}

}  // namespace anymesh
