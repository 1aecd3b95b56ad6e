#include "framework/format/dialects/deepspeed_view.h"

#include <algorithm>
#include <map>
#include <set>

#include "framework/format/layout/names.h"
#include "framework/format/sharded/tensor_views.h"

namespace anymesh {
namespace {

using Entries = std::vector<Value::Entry>;

// Returns the optimizer's step: the largest of its parameters.
int64_t step_of(const DcpModel& model) {
  int64_t most = 0;
  for (const auto& [name, parameter] : model.parameters)
    if (const auto step = parameter.states.find(std::string(kStepState));
        step != parameter.states.end())
      most = std::max(most, Value(step->second).as_int());
  return most;
}

// Returns the second names of tied weights, and the first: a tensor that no optimizer has, with the
// bits of one that some has.
std::map<std::string, std::string> ties_of(const DcpModel& model,
                                           const std::set<std::string>& trained) {
  std::map<std::string, std::string> ties;
  for (const std::string& second : model.order) {
    const TensorRecord& tensor = model.parameters.at(second).weight;
    if (trained.contains(second) || !is_floating(tensor.dtype)) continue;
    for (const std::string& first : trained)
      if (are_same(tensor, model.parameters.at(first).weight)) ties.emplace(second, first);
  }
  return ties;
}

}  // namespace

// Most that are not the same differ near their beginning.
bool are_same(const TensorRecord& a, const TensorRecord& b) {
  constexpr int64_t kFirst = 1024;
  if (a.shape != b.shape || a.dtype != b.dtype || a.numel() == 0) return false;
  const Shape first{std::min(kFirst, a.numel())};
  return compare_tensors(a.slice(0, first), b.slice(0, first)).count == 0 &&
         compare_tensors(a, b).count == 0;
}

DeepspeedView deepspeed_view(const DcpModel& model) {
  Value shapes = Value::list(), groups = Value::list();
  std::set<std::string> trained;
  for (const DcpModel::Group& group : model.groups) {
    Entries own;
    for (const std::string& name : group.names)
      own.emplace_back(name, Value::size(model.parameters.at(name).weight.shape));
    trained.insert(group.names.begin(), group.names.end());
    shapes.push_back(Value::ordered_dict(std::move(own)));
    Value settings = group.settings;
    groups.push_back(settings.set(keys::kParams, Value::list({int64_t(groups.size())})));
  }
  const bool any_cut =
      std::ranges::any_of(model.parameters, [](const auto& p) { return p.second.cut; });
  const auto is_frozen = [&](const std::string& name) {
    return any_cut ? model.parameters.at(name).cut
                   : name.ends_with("weight") || name.ends_with("bias");
  };
  const auto ties = ties_of(model, trained);
  Entries module, frozen, shared;
  Value buffers = Value::list();
  for (const std::string& name : model.order) {
    const TensorRecord& tensor = model.parameters.at(name).weight;
    module.emplace_back(name, tensor);
    if (trained.contains(name)) continue;
    if (const auto tie = ties.find(name); tie != ties.end()) {
      shared.emplace_back(name, tie->second);
      continue;
    }
    if (is_floating(tensor.dtype) && is_frozen(name))
      frozen.emplace_back(name, Value::size(tensor.shape));
    else
      buffers.push_back(name);
  }
  DeepspeedView view{
      Value::dict({{keys::kModule, Value::ordered_dict(std::move(module))},
                   {keys::kBufferNames, buffers},
                   {keys::kOptimizer, {}},
                   {keys::kParamShapes, shapes},
                   {keys::kFrozenParamShapes, Value::ordered_dict(std::move(frozen))},
                   {keys::kSharedParams, Value::dict(std::move(shared))},
                   {keys::kFrozenParamFragments, {}},
                   {keys::kLrScheduler, {}},
                   {keys::kDataSampler, {}},
                   {keys::kRandomLtd, {}},
                   {keys::kSkippedSteps, 0},
                   {keys::kGlobalSteps, step_of(model)},
                   {keys::kDpWorldSize, 1},
                   {keys::kMpWorldSize, 1},
                   {keys::kDsConfig, Value::dict()},
                   {keys::kDsVersion, kWrittenLikeDeepSpeed}}),
      {}};
  if (!model.groups.empty())
    view.optimizer_state = Value::dict({{keys::kParamGroups, groups},
                                        {keys::kZeroStage, zero_stage_enum(1)},
                                        {keys::kDsVersion, kWrittenLikeDeepSpeed}});
  return view;
}

}  // namespace anymesh
