// Reads weights in the model's precision and buffers, from `module` or a pipeline's layer files.

#include <algorithm>
#include <iterator>
#include <span>

#include "framework/format/sharded/stages.h"
#include "framework/format/sharded/tensor_views.h"
#include "framework/format/torch_file/torch_file.h"
#include "framework/util/errors.h"
#include "framework/util/parallel_for.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

// Returns one rank's dicts of trained and frozen parameters.
std::vector<Value> parameter_lists(const Value& model_state) {
  std::vector<Value> lists = model_state.find(keys::kParamShapes).value_or(Value::list()).items();
  lists.push_back(model_state.find(keys::kFrozenParamShapes).value_or(Value::dict()));
  return lists;
}

// Returns all names in the metadata of a tp rank's stages: parameters, buffers, and tied layers in
// the patterns that Megatron and we publish.
std::set<std::string> listed_names(const ShardedCheckpoint& source, int tp_rank) {
  std::set<std::string> names;
  for (int pp = 0; pp < source.pp_size; ++pp) {
    const Value& state = source.model_state(pp, tp_rank);
    for (const Value& list : parameter_lists(state))
      for (const auto& [name, shape] : list.entries()) names.insert(name.as_string());
    names.merge(buffer_names(state));
    const Value info = state.find(keys::kUniversalInfo).value_or(Value::dict());
    for (const auto key : {keys::kVocabularyPatterns, keys::kPipelineReplicatedPatterns}) {
      for (const std::string& pattern : info.find(key).value_or(Value::list()).as_strings())
        if (pattern.starts_with(kTiedModules)) names.insert(pattern);
    }
  }
  return names;
}

NamedTensors tensors_of(const LayerFile& layer) {
  NamedTensors tensors;
  for (const auto& [name, value] : layer.contents.entries())
    if (value.is_tensor()) tensors.emplace_back(layer.prefix + name.as_string(), value.as_tensor());
  return tensors;
}

// Finds the layer that stages share under the key in `prefix`, which no file records. It is the
// layer that has all `names`, which are listed under the key, and none that is listed under its
// number.
void name_layer(std::span<LayerFile> layers, const std::set<std::string>& listed,
                const std::string& prefix, const std::set<std::string>& names) {
  std::vector<LayerFile*> having, alike;  // layers with all `names`; with no others
  for (LayerFile& layer : layers) {
    std::set<std::string> own;
    bool has_number = layer.is_shared();
    for (const auto& [name, tensor] : tensors_of(layer)) {
      own.insert(name.substr(layer.prefix.size()));
      has_number |= listed.contains(name);
    }
    if (has_number || !std::ranges::includes(own, names)) continue;
    having.push_back(&layer);
    if (own == names) alike.push_back(&layer);
  }
  if (alike.empty()) alike = having;
  if (alike.size() > 1)
    throw DamagedFile(alike[0]->path.string() + ": either this or " +
                      alike[1]->path.filename().string() + " is " + prefix +
                      "*, which layers share; nothing tells which");
  if (!alike.empty()) alike[0]->prefix = prefix;
}

// Reads the layer files, by tp rank and number.
void read_layers(ShardedCheckpoint& source, int threads, RecordChecksums* checks) {
  for (const auto& [key, path] : source.layer_files)
    if (key.second < source.tp_size)
      source.layers.push_back({key.first, key.second, path, {}, std::to_string(key.first) + "."});
  std::ranges::stable_sort(source.layers, {}, &LayerFile::tp_rank);
  parallel_for(source.layers.size(), threads, [&](size_t i) {
    source.layers[i].contents = read_torch_file(source.layers[i].path, checks);
  });
  for (int tp = 0; tp < source.tp_size; ++tp) {
    const std::set<std::string> listed = listed_names(source, tp);
    std::map<std::string, std::set<std::string>> shared;  // prefix -> names in the layer
    for (const std::string& name : listed) {
      const size_t dot = name.find('.', kTiedModules.size());
      if (name.starts_with(kTiedModules) && dot != std::string::npos)
        shared[name.substr(0, dot + 1)].insert(name.substr(dot + 1));
    }
    const std::span<LayerFile> own(
        std::ranges::lower_bound(source.layers, tp, {}, &LayerFile::tp_rank),
        std::ranges::upper_bound(source.layers, tp, {}, &LayerFile::tp_rank));
    for (const auto& [prefix, names] : shared) name_layer(own, listed, prefix, names);
  }
}

// Returns a tp rank's tensors in layer files; those that stages share come first.
NamedTensors layer_tensors(const ShardedCheckpoint& source, int tp_rank) {
  NamedTensors tensors;
  for (const bool shared : {true, false})
    for (const LayerFile& layer : source.layers)
      if (layer.tp_rank == tp_rank && layer.is_shared() == shared)
        std::ranges::move(tensors_of(layer), std::back_inserter(tensors));
  return tensors;
}

// Returns the first stage whose metadata lists the parameter, trained or frozen; 0 if none does.
int stage_of(const ShardedCheckpoint& source, const std::string& name, int tp_rank) {
  for (int pp = 0; pp < source.pp_size; ++pp) {
    for (const Value& list : parameter_lists(source.model_state(pp, tp_rank)))
      if (list.contains(name)) return pp;
  }
  return 0;
}

// Returns the tensors in experts' files that a tp rank has. Stacked experts, each in a file of its
// own, are put together. `contents` are those of source.expert_files.
NamedTensors expert_tensors(const ShardedCheckpoint& source, const std::vector<Value>& contents,
                            int tp_rank) {
  NamedTensors tensors;
  std::map<std::string, std::map<int64_t, Value>> stacked;
  for (size_t i = 0; i < contents.size(); ++i) {
    if (source.expert_files[i].first != (source.experts.whole ? 0 : tp_rank)) continue;
    for (const auto& [key, value] : contents[i].entries()) {
      if (!value.is_tensor()) continue;
      const auto [name, expert] = source.experts.split_key(key.as_string());
      if (expert < 0) {
        tensors.emplace_back(name, value.as_tensor());
      } else if (!stacked[name].emplace(expert, value).second) {
        value.fail("one file of expert " + std::to_string(expert));
      }
    }
  }
  for (const auto& [name, experts] : stacked) {
    const TensorRecord& first = experts.begin()->second.as_tensor();
    const int64_t count = source.experts.layer_of(name)->experts;
    std::vector<ShardFragment> parts;
    for (const auto& [expert, value] : experts) {
      const TensorRecord& tensor = value.as_tensor();
      const auto place = static_cast<int64_t>(parts.size());
      if (tensor.shape != first.shape || tensor.dtype != first.dtype || expert != place)
        value.fail("experts 0 to " + std::to_string(count - 1) + " of one shape, and this as " +
                   std::to_string(place));
      parts.push_back({0, expert * tensor.numel(), tensor.numel(), tensor.bytes});
    }
    if (static_cast<int64_t>(experts.size()) != count)
      throw DamagedFile(source.folder.string() + ": files are missing: " + name + " has " +
                        std::to_string(count) + " experts, but only " +
                        std::to_string(experts.size()) + " have a file");
    Shape shape = first.shape;
    shape.insert(shape.begin(), count);
    numel(shape);
    tensors.emplace_back(name, TensorRecord{first.dtype, shape, first.requires_grad,
                                            joined(shape, std::move(parts), first.dtype)});
  }
  return tensors;
}

}  // namespace

void read_model_tensors(ShardedCheckpoint& source, int threads, RecordChecksums* checks) {
  read_layers(source, threads, checks);
  std::vector<Value> experts(source.expert_files.size());
  parallel_for(experts.size(), threads, [&](size_t i) {
    experts[i] = read_torch_file(source.expert_files[i].second, checks);
  });
  for (int tp = 0; tp < source.tp_size; ++tp) {
    NamedTensors& tensors = source.model_tensors.emplace_back(layer_tensors(source, tp));
    std::set<std::string> known;  // tied tensors are on two stages
    for (const auto& [name, tensor] : tensors) known.insert(name);
    for (int pp = 0; pp < source.pp_size; ++pp) {
      for (auto& [name, tensor] : module_tensors(source.model_state(pp, tp)))
        if (known.insert(name).second) tensors.emplace_back(name, tensor);
    }
    for (auto& [name, tensor] : expert_tensors(source, experts, tp))
      if (known.insert(name).second) tensors.emplace_back(name, std::move(tensor));
  }
}

std::vector<NamedShape> trainable(const ShardedCheckpoint& source, int tp_rank) {
  const std::set<std::string> buffers = buffer_names(source);
  std::vector<NamedShape> result;
  std::set<const ByteSource*> seen;
  for (const auto& [name, tensor] : source.model_tensors[static_cast<size_t>(tp_rank)]) {
    if (!buffers.contains(name) && seen.insert(tensor.bytes.get()).second)
      result.push_back({name, tensor.shape});
  }
  return result;
}

void read_weights(ShardedCheckpoint& source) {
  for (int tp = 0; tp < source.tp_size; ++tp) {
    const NamedTensors& tensors = source.model_tensors[static_cast<size_t>(tp)];
    const Weights weights(tensors.begin(), tensors.end());
    for (const auto& [name, shape] : trainable(source, tp)) {
      if (tp > 0 && source.experts.whole && source.experts.is_expert(name)) continue;
      const int mp = stage_of(source, name, tp) * source.tp_size + tp;
      ParameterShard& shard = shard_of(source, name, mp, shape);
      const TensorRecord& own = weights.at(name);
      const Value weight = Value(widened(own)).named(name);
      source.weights_rounded |= !source.weights_only && weight.as_tensor().dtype != own.dtype;
      add_fragment(shard, kFp32State, 0, weight, 0, 0, numel(shape));
    }
  }
  if (source.parameters.empty())
    throw DamagedFile(source.folder.string() + ": there are no weights of the model in " +
                      std::string(keys::kModule) + " nor in layer files" +
                      (source.states_refused.empty() ? "" : "; " + source.states_refused));
}

}  // namespace anymesh
