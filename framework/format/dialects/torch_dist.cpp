#include "framework/format/dialects/torch_dist.h"

#include <algorithm>
#include <charconv>

#include "framework/format/dialects/dcp_writer.h"
#include "framework/format/dialects/distributed_optimizer.h"
#include "framework/format/layout/names.h"
#include "framework/format/sharded/tensor_views.h"
#include "framework/format/torch_file/torch_file.h"
#include "framework/util/errors.h"
#include "framework/util/printable.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kLayers = "layers.";
constexpr int64_t kMostLayers = 1 << 16;

// Returns where the number of a layer belongs in the name; npos if it is there, or no layer's.
size_t number_at(const std::string& name) {
  const size_t layers = name.find(kLayers), at = layers + kLayers.size();
  if (layers == std::string::npos || (layers > 0 && name[layers - 1] != '.') || at >= name.size() ||
      (name[at] >= '0' && name[at] <= '9'))
    return std::string::npos;
  return at;
}

TensorRecord layer_of(const TensorRecord& stacked, int64_t layer) {
  const Shape shape(stacked.shape.begin() + 1, stacked.shape.end());
  return stacked.slice(layer * numel(shape), shape);
}

void unstack(DcpModel& model, const fs::path& folder) {
  DcpModel whole;
  for (const std::string& name : model.order) {
    const DcpModel::Parameter& stored = model.parameters.at(name);
    const size_t at = number_at(name);
    if (at == std::string::npos) {
      whole.parameters[name] = stored;
      whole.order.push_back(name);
      continue;
    }
    const Shape& shape = stored.weight.shape;
    const auto fits = [&](const auto& state) { return state.second.shape == shape; };
    if (shape.empty() || shape[0] > kMostLayers || !std::ranges::all_of(stored.states, fits))
      throw Unreadable(folder.string() + ": " + printable(name) + " of shape " + to_string(shape) +
                       " is no stack of layers with its states");
    for (int64_t layer = 0; layer < shape[0]; ++layer) {
      const std::string own = name.substr(0, at) + std::to_string(layer) + "." + name.substr(at);
      DcpModel::Parameter& parameter = whole.parameters[own];
      parameter.weight = layer_of(stored.weight, layer);
      for (const auto& [state, tensor] : stored.states)
        parameter.states[state] = layer_of(tensor, layer);
      whole.order.push_back(own);
    }
  }
  model = std::move(whole);
}

double decay_of(const Value& group) { return group.find("wd_mult").value_or(1.0).as_double(); }

void add_groups(DcpModel& model, const Value& settings) {
  if (settings.size() == 0 || settings.size() > 2 ||
      (settings.size() == 2 && (decay_of(settings.at(0)) == 0) == (decay_of(settings.at(1)) == 0)))
    return;
  for (const Value& group : settings.items()) {
    Value own = group;
    own.erase(keys::kParams);
    model.groups.push_back({{}, own.erase(kStepState)});
  }
  for (const std::string& name : model.order) {
    const DcpModel::Parameter& parameter = model.parameters.at(name);
    if (parameter.states.empty()) continue;
    const bool vector = parameter.weight.shape.size() == 1;
    const size_t group = settings.size() == 2 && (decay_of(settings.at(0)) == 0) != vector ? 1 : 0;
    model.groups[group].names.push_back(name);
  }
}

// Returns what ranks do not cut: from common.pt or, with buckets, from an item of the first ranks.
Value optimizer_of(const DcpFolder& folder) {
  const Value whole = read_torch_file(folder.path / kTorchDistCommon).find(keys::kOptimizer);
  if (!whole.is_dict()) return Value::dict();
  const auto item =
      folder.objects.find(std::string(kBuckets) + "dp_group_idx_0.optimizer/shard_0_1");
  if (item != folder.objects.end()) return read_torch_file(item->second.open()).at(0);
  return whole.find(keys::kOptimizer).value_or(whole);  // within it where masters are beside it
}

// A layer's parameter: decoder.layers. 3 .mlp.linear_fc1.weight.
struct LayerName {
  std::string stacked;  // without the number
  int64_t layer = -1;   // -1: of no layer
};

LayerName layer_of_name(const std::string& name) {
  const size_t layers = name.find(kLayers), begin = layers + kLayers.size();
  if (layers == std::string::npos) return {name};
  const size_t end = name.find('.', begin);
  int64_t layer = 0;
  const auto [stop, error] =
      std::from_chars(name.data() + begin, name.data() + std::min(end, name.size()), layer);
  if (end == std::string::npos || error != std::errc() || stop != name.data() + end) return {name};
  return {name.substr(0, begin) + name.substr(end + 1), layer};
}

// Joins tensors of one shape along a new first dim.
TensorRecord stacked(const std::string& name, const std::vector<TensorRecord>& layers) {
  TensorRecord whole = layers.at(0);
  std::vector<ShardFragment> parts;
  for (const TensorRecord& layer : layers) {
    if (layer.shape != whole.shape || layer.dtype != whole.dtype)
      throw Unreadable(name + ": a layer's tensor has shape " + to_string(layer.shape) +
                       ", and another's " + to_string(whole.shape) + "; torch_dist stacks them");
    parts.push_back({0, std::ssize(parts) * layer.numel(), layer.numel(), layer.bytes});
  }
  const Shape layer = whole.shape;
  whole.shape.insert(whole.shape.begin(), std::ssize(layers));
  whole.bytes = joined(whole.shape, std::move(parts), whole.dtype);
  return whole;
}

// Collects the tensors of all layers, by the name of the stack.
class Stacks {
 public:
  void add(const std::string& key, const LayerName& name, const TensorRecord& tensor) {
    auto& layers = found_[key + name.stacked];
    if (name.layer >= 0 && name.layer != std::ssize(layers.tensors))
      throw Unreadable(name.stacked + ": layer " + std::to_string(name.layer) + " follows layer " +
                       std::to_string(std::ssize(layers.tensors) - 1) +
                       "; torch_dist stacks all layers, which must be alike");
    layers.tensors.push_back(tensor);
    layers.single = name.layer < 0;
  }
  std::vector<DcpEntry> entries() const {
    std::vector<DcpEntry> entries;
    for (const auto& [name, layers] : found_)
      entries.push_back(
          {{name}, layers.single ? layers.tensors.at(0) : stacked(name, layers.tensors)});
    return entries;
  }

 private:
  struct Layers {
    std::vector<TensorRecord> tensors;
    bool single = false;
  };
  std::map<std::string, Layers> found_;
};

// Returns a group's settings with those by which Megatron-Core finds the group of a run.
Value megatron_settings(const DcpModel& model, const DcpModel::Group& group) {
  const bool vectors = std::ranges::all_of(group.names, [&](const std::string& name) {
    return model.parameters.at(name).weight.shape.size() == 1;
  });
  Value settings = group.settings;
  const double decay = vectors ? 0.0 : 1.0;
  for (const auto& [key, value] : {std::pair<const char*, Value>("pre_wd_mult", decay),
                                   {"wd_mult", decay},
                                   {"pre_lr_mult", 1.0},
                                   {"lr_mult", 1.0},
                                   {"is_expert_parallel", false},
                                   {"is_decoupled_lr", false},
                                   {"default_config", true}})
    if (!settings.contains(key)) settings.set(key, value);
  return settings;
}

// Returns common.pt's contents.
Value common_of(const DcpModel& model, int64_t iteration) {
  Value groups = Value::list(), state = Value::dict();
  for (const DcpModel::Group& group : model.groups) {
    groups.push_back(megatron_settings(model, group));
    for (const std::string& name : group.names)
      if (const auto& states = model.parameters.at(name).states;
          states.contains(std::string(kStepState)))
        state.set("common_step", states.at(std::string(kStepState)));
  }
  Value common = Value::dict();
  if (!model.groups.empty())
    common.set(keys::kOptimizer,
               Value::dict({{keys::kState, state}, {keys::kParamGroups, groups}}));
  return common.set("checkpoint_version", 3.0).set(keys::kIteration, iteration);
}

}  // namespace

bool is_torch_dist(const fs::path& folder) { return fs::exists(folder / kTorchDistCommon); }

DcpModel torch_dist_model(DcpFolder folder) {
  const std::string refused = name_distributed_states(folder);
  DcpModel model = dcp_model(folder);
  unstack(model, folder.path);
  model.states_refused = refused;
  const Value optimizer = optimizer_of(folder), states = optimizer.find(keys::kState);
  const Value groups = optimizer.find(keys::kParamGroups);
  Value step = states.is_dict() ? states.find("common_step") : Value();
  if (!step && groups && groups.size() > 0) step = groups.at(0).find(kStepState);
  if (step)
    for (auto& [name, parameter] : model.parameters)
      if (!parameter.states.empty()) parameter.states[std::string(kStepState)] = step_tensor(step);
  if (groups) add_groups(model, groups);
  return model;
}

std::vector<StreamedFile> torch_dist_files(const fs::path& folder, const DcpModel& model,
                                           int64_t iteration) {
  Stacks stacks;
  std::map<std::string, int64_t> modules;  // of layers, with a weight of their own, and the layers
  std::map<std::pair<std::string, int64_t>, std::string> names;  // by stack and layer
  for (const std::string& name : model.order) {
    const LayerName layer = layer_of_name(name);
    names[{layer.stacked, layer.layer}] = name;
    constexpr std::string_view kWeight = ".weight";
    if (layer.layer >= 0 && layer.stacked.ends_with(kWeight))
      ++modules[layer.stacked.substr(0, layer.stacked.size() - kWeight.size())];
  }
  for (const auto& [layer, name] : names) {
    const DcpModel::Parameter& parameter = model.parameters.at(name);
    const LayerName to{layer.first, layer.second};
    stacks.add("", to, parameter.weight);
    for (const auto& [state, tensor] : parameter.states)
      if (state != kStepState) stacks.add("optimizer.state." + state + ".", to, tensor);
  }
  std::vector<DcpEntry> entries = stacks.entries();
  for (const auto& [module, layers] : modules)  // Transformer Engine's, which has none here
    for (int64_t layer = 0; layer < layers; ++layer)
      entries.push_back(
          {{module + "._extra_state/shard_" + std::to_string(layer) + "_" + std::to_string(layers)},
           Value::list({Value()})});
  std::vector<StreamedFile> files = dcp_files(folder, entries);
  files.push_back(streamed_torch_file(folder / kTorchDistCommon, common_of(model, iteration)));
  files.push_back({folder / "metadata.json", {}});
  files.back().layout.add(
      std::string_view(R"({"sharded_backend": "torch_dist", "sharded_backend_version": 1, )"
                       R"("common_backend": "torch", "common_backend_version": 1})"));
  return files;
}

}  // namespace anymesh
