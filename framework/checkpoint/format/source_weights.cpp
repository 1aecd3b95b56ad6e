// Weights in the model's precision: in `module`, or in the layer files of a pipeline.

#include "framework/checkpoint/format/merged_tensor.h"
#include "framework/checkpoint/format/source_stages.h"
#include "framework/checkpoint/format/torch_file.h"

namespace anymesh {
namespace {

// The tied layer's prefix and a name in it, from the patterns that Megatron and we publish for it:
// tied_modules.embed.word_embeddings.weight -> (tied_modules.embed., word_embeddings.weight)
std::pair<std::string, std::string> tied_layer(const Value& model_state) {
  const Value info = model_state.find(keys::kUniversalInfo).value_or(Value::dict()),
              patterns = info.find(keys::kVocabularyPatterns).value_or(Value::list());
  for (const std::string& pattern : patterns.as_strings()) {
    const size_t dot = pattern.find('.', kTiedModules.size());
    if (pattern.starts_with(kTiedModules) && dot != std::string::npos)
      return {pattern.substr(0, dot + 1), pattern.substr(dot + 1)};
  }
  return {};
}

// The first stage whose metadata lists the parameter, trained or frozen.
int stage_of(const SourceCheckpoint& source, const std::string& name, int tp_rank) {
  for (int pp = 0; pp < source.pp_size; ++pp) {
    const Value& state = source.model_state(pp, tp_rank);
    std::vector<Value> lists = state.find(keys::kParamShapes).value_or(Value::list()).items();
    lists.push_back(state.find(keys::kFrozenParamShapes));
    for (const Value& list : lists)
      if (list && list.contains(name)) return pp;
  }
  return 0;
}

}  // namespace

NamedTensors weights_of(const SourceCheckpoint& source, int tp_rank, DeferredChecks* checks) {
  const Value& model_state = source.model_state(0, tp_rank);
  if (model_state.find(keys::kModule)) return module_tensors(model_state);
  const auto [tied_prefix, tied_name] = tied_layer(model_state);
  NamedTensors tied, rest;
  for (const auto& [key, path] : source.layer_files) {
    const auto& [layer, tp] = key;
    if (tp != tp_rank) continue;
    const Value state = read_torch_file(path, checks);
    const bool is_tied = tied.empty() && !tied_prefix.empty() && state.contains(tied_name);
    const std::string prefix = is_tied ? tied_prefix : std::to_string(layer) + ".";
    for (const auto& [name, value] : state.entries()) {
      (is_tied ? tied : rest).emplace_back(prefix + name.as_string(), value.as_tensor());
    }
  }
  tied.insert(tied.end(), rest.begin(), rest.end());
  return tied;
}

void read_weights(SourceCheckpoint& source, DeferredChecks* checks) {
  for (int tp = 0; tp < source.tp_size; ++tp) {
    for (const auto& [name, tensor] : weights_of(source, tp, checks)) {
      const int mp = stage_of(source, name, tp) * source.tp_size + tp;
      SourceShard& shard = shard_of(source, name, mp, tensor.shape);
      const Value fp32 = Value(as_float32(tensor)).named(name);
      add_fragment(shard, kFp32, 0, fp32, 0, 0, tensor.numel());
    }
  }
}

}  // namespace anymesh
