#include "framework/format/dialects/megatron_fsdp.h"

#include <algorithm>
#include <limits>

#include "framework/util/errors.h"
#include "framework/util/printable.h"

namespace anymesh {
namespace {

// Norms before a matrix are in the matrix's module, as with Transformer Engine and in torch_dist.
constexpr std::pair<std::string_view, std::string_view> kPlain[] = {
    {".module.", "."},
    {".param_to_group_meta.", ".param_groups."},
    {".input_layernorm.", ".self_attention.linear_qkv.layer_norm_"},
    {".pre_mlp_layernorm.", ".mlp.linear_fc1.layer_norm_"}};

constexpr size_t kLongestName = 4096;

std::string plain_name(std::string name) {
  if (name.size() > kLongestName)
    throw Unreadable(printable(name) + ": is longer than " + std::to_string(kLongestName) +
                     " bytes");
  for (const auto& [theirs, plain] : kPlain)
    for (size_t at; (at = name.find(theirs)) != std::string::npos;)
      name.replace(at, theirs.size(), plain);
  return name;
}

// Returns where a gated unit's half is named, before _w in ...linear_fc1.weight_w.exp_avg; or npos.
size_t half_at(const std::string& name, std::string_view half) {
  for (const size_t end : {name.size(), name.rfind('.')})
    if (name.find(".linear_fc1.") < end && std::string_view(name).substr(0, end).ends_with(half))
      return end - half.size();
  return std::string::npos;
}

// Joins both halves, of one shape, along their first dim. Both have the same step.
TensorRecord joined_halves(const std::string& name, const TensorRecord& w, const TensorRecord& v) {
  if (w.shape.empty()) return w;
  if (w.shape[0] > std::numeric_limits<int64_t>::max() / 2)
    throw DamagedFile(printable(name) + ": has a half of shape " + to_string(w.shape));
  Shape whole = w.shape, behind(whole.size());
  behind[0] = w.shape[0];
  whole[0] *= 2;
  return tensor_of_boxes(name, w.dtype, whole,
                         {{Shape(whole.size()), w.shape, w.bytes}, {behind, v.shape, v.bytes}});
}

// Returns the folder with the names that dcp_model() knows, and whole units.
DcpFolder plain_folder(const DcpFolder& folder) {
  DcpFolder plain{.path = folder.path};
  const auto fail = [&](const std::string& what) {
    throw DamagedFile(folder.path.string() + ": " + what);
  };
  for (const std::string& theirs : folder.order) {
    const size_t w = half_at(theirs, "_w"), v = half_at(theirs, "_v");
    std::string name = plain_name(theirs), other = theirs;
    const auto has_no_other = [&] {
      fail("has no " + printable(other) + " like " + printable(theirs));
    };
    const auto tensor = folder.tensors.find(theirs);
    if (tensor == folder.tensors.end()) {
      plain.objects.emplace(name, folder.objects.at(theirs));
    } else if (w != std::string::npos) {
      const auto half = folder.tensors.find(other.replace(w, 2, "_v"));
      if (half == folder.tensors.end() || half->second.dtype != tensor->second.dtype ||
          half->second.shape != tensor->second.shape)
        has_no_other();
      name = plain_name(std::string(theirs).erase(w, 2));
      plain.tensors.emplace(name, joined_halves(name, tensor->second, half->second));
    } else if (v != std::string::npos) {
      if (!folder.tensors.contains(other.replace(v, 2, "_w"))) has_no_other();
      continue;  // joined to the other half
    } else {
      plain.tensors.emplace(name, tensor->second);
    }
    if (folder.cut.contains(theirs)) plain.cut[name];
    const size_t model = name.starts_with("model.") ? 6 : 0;
    if (!plain.keys
             .try_emplace(name, model ? std::vector<std::string>{"model", name.substr(model)}
                                      : std::vector<std::string>{name})
             .second)
      fail("has " + printable(name) + " twice, with and without module.");
    plain.order.push_back(std::move(name));
  }
  return plain;
}

}  // namespace

bool is_megatron_fsdp(const DcpFolder& folder) {
  return std::ranges::any_of(folder.tensors, [](const auto& tensor) {
    return tensor.first.starts_with("model.module.") &&
           plain_name(tensor.first).starts_with("model.decoder.layers.");
  });
}

DcpModel megatron_fsdp_model(const DcpFolder& folder) {
  DcpModel model = dcp_model(plain_folder(folder));
  for (DcpModel::Group& group : model.groups) {  // Transformer Engine's Adam has the step there
    const Value step = group.settings.find(kStepState);
    group.settings.erase(kStepState);
    for (const std::string& name : group.names)
      if (step)
        model.parameters.at(name).states.try_emplace(std::string(kStepState), step_tensor(step));
  }
  return model;
}

}  // namespace anymesh
