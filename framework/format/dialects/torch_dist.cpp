#include "framework/format/dialects/torch_dist.h"

#include <algorithm>

#include "framework/format/layout/names.h"
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
    model.groups.push_back({{}, own.erase(keys::kParams)});
  }
  for (const std::string& name : model.order) {
    const DcpModel::Parameter& parameter = model.parameters.at(name);
    if (parameter.states.empty()) continue;
    const bool vector = parameter.weight.shape.size() == 1;
    const size_t group = settings.size() == 2 && (decay_of(settings.at(0)) == 0) != vector ? 1 : 0;
    model.groups[group].names.push_back(name);
  }
}

}  // namespace

bool is_torch_dist(const fs::path& folder) { return fs::exists(folder / kTorchDistCommon); }

void complete_torch_dist(DcpModel& model, const fs::path& folder) {
  unstack(model, folder);
  const Value common = read_torch_file(folder / kTorchDistCommon),
              optimizer = common.find(keys::kOptimizer);
  if (!optimizer.is_dict()) return;
  const Value states = optimizer.find(keys::kState);
  if (const Value step = states.is_dict() ? states.find("common_step") : Value(); step.is_tensor())
    for (auto& [name, parameter] : model.parameters)
      if (!parameter.states.empty()) parameter.states[std::string(kStepState)] = step.as_tensor();
  if (const Value groups = optimizer.find(keys::kParamGroups)) add_groups(model, groups);
}

}  // namespace anymesh
