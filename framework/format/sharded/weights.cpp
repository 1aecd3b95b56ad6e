// Reads weights in the model's precision and buffers, from `module` or a pipeline's layer files.

#include <algorithm>

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

// The layers of a pipeline on one tp rank. A layer file names tensors within the layer. A layer
// that stages share is named by its key, which no file records. It is the layer that has all
// tensors listed under the key and none listed under its number.
class Layers {
 public:
  Layers(const ShardedCheckpoint& source, int tp_rank, int threads, RecordChecksums* checks)
      : listed_(listed_names(source, tp_rank)) {
    for (const auto& [key, path] : source.layer_files)
      if (key.second == tp_rank) layers_.push_back({key.first, path, {}, {}});
    parallel_for(layers_.size(), threads, [&](size_t i) {
      for (const auto& [name, value] : read_torch_file(layers_[i].path, checks).entries())
        if (value.is_tensor()) layers_[i].tensors.emplace_back(name.as_string(), value.as_tensor());
    });
    std::map<std::string, std::set<std::string>> tied;  // prefix -> names in the layer
    for (const std::string& name : listed_) {
      const size_t dot = name.find('.', kTiedModules.size());
      if (name.starts_with(kTiedModules) && dot != std::string::npos)
        tied[name.substr(0, dot + 1)].insert(name.substr(dot + 1));
    }
    for (const auto& [prefix, names] : tied) name_layer(prefix, names);
  }

  NamedTensors tensors() const {
    NamedTensors tied, rest;
    for (const Layer& layer : layers_) {
      NamedTensors& to = layer.prefix.empty() ? rest : tied;
      for (const auto& [name, tensor] : layer.tensors)
        to.emplace_back(full_name(layer, name), tensor);
    }
    tied.insert(tied.end(), rest.begin(), rest.end());
    return tied;
  }

  LayerNames names() const {
    LayerNames names;
    for (const Layer& layer : layers_)
      for (const auto& [name, tensor] : layer.tensors)
        names[layer.path][name] = full_name(layer, name);
    return names;
  }

 private:
  struct Layer {
    int number;
    fs::path path;
    NamedTensors tensors;
    std::string prefix;  // for a tied layer
  };

  static std::string full_name(const Layer& layer, const std::string& name) {
    return (layer.prefix.empty() ? std::to_string(layer.number) + "." : layer.prefix) + name;
  }

  void name_layer(const std::string& prefix, const std::set<std::string>& names) {
    std::vector<Layer*> having, alike;  // layers with all `names`; with no others
    for (Layer& layer : layers_) {
      std::set<std::string> own;
      bool has_number = !layer.prefix.empty();
      for (const auto& [name, tensor] : layer.tensors) {
        own.insert(name);
        has_number |= listed_.contains(full_name(layer, name));
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

  std::set<std::string> listed_;
  std::vector<Layer> layers_;
};

// Returns the first stage whose metadata lists the parameter, trained or frozen; 0 if none does.
int stage_of(const ShardedCheckpoint& source, const std::string& name, int tp_rank) {
  for (int pp = 0; pp < source.pp_size; ++pp) {
    for (const Value& list : parameter_lists(source.model_state(pp, tp_rank)))
      if (list.contains(name)) return pp;
  }
  return 0;
}

// Returns the tensors in experts' files that a tp rank has. Stacked experts, each in a file of its
// own, are put together.
NamedTensors expert_tensors(const ShardedCheckpoint& source, int tp_rank, int threads,
                            RecordChecksums* checks) {
  std::vector<fs::path> files;
  for (const auto& [rank, path] : source.expert_files)
    if (rank == (source.experts.whole ? 0 : tp_rank)) files.push_back(path);
  std::vector<Value> contents(files.size());
  parallel_for(files.size(), threads,
               [&](size_t i) { contents[i] = read_torch_file(files[i], checks); });
  NamedTensors tensors;
  std::map<std::string, std::map<int64_t, Value>> stacked;
  for (const Value& content : contents) {
    for (const auto& [key, value] : content.entries()) {
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

std::vector<NamedTensors> model_tensors(const ShardedCheckpoint& source, int threads,
                                        RecordChecksums* checks) {
  std::vector<NamedTensors> ranks;
  for (int tp = 0; tp < source.tp_size; ++tp) {
    NamedTensors& tensors = ranks.emplace_back(Layers(source, tp, threads, checks).tensors());
    std::set<std::string> known;  // tied tensors are on two stages
    for (const auto& [name, tensor] : tensors) known.insert(name);
    for (int pp = 0; pp < source.pp_size; ++pp) {
      for (auto& [name, tensor] : module_tensors(source.model_state(pp, tp)))
        if (known.insert(name).second) tensors.emplace_back(name, tensor);
    }
    for (auto& [name, tensor] : expert_tensors(source, tp, threads, checks))
      if (known.insert(name).second) tensors.emplace_back(name, std::move(tensor));
  }
  return ranks;
}

LayerNames layer_names(const ShardedCheckpoint& source, int tp_rank, int threads,
                       RecordChecksums* checks) {
  return Layers(source, tp_rank, threads, checks).names();
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
