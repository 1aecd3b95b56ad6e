#include "framework/checkpoint/load/fp32.h"

#include <ATen/Functions.h>
#include <torch/nn/module.h>

#include <limits>
#include <unordered_map>

#include "framework/checkpoint/load/load_whole_tensors.h"
#include "framework/checkpoint/torch_bridge.h"
#include "framework/storage.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

fs::path folder_of(const fs::path& checkpoint_dir, const std::string& tag) {
  return tag.empty() ? checkpoint_dir : checkpoint_dir / tag;
}

// Returns the model's parameters and buffers.
torch::OrderedDict<std::string, torch::Tensor> tensors_of(const torch::nn::Module& model) {
  auto tensors = model.named_parameters();
  for (const auto& [name, buffer] : model.named_buffers().pairs()) tensors.insert(name, buffer);
  return tensors;
}

void check_fits(const torch::OrderedDict<std::string, torch::Tensor>& model,
                const Fp32StateDict& weights, const fs::path& folder) {
  std::string problems;
  for (const auto& [name, tensor] : model.pairs()) {
    const Fp32Tensor* weight = weights.find(name);
    if (!weight) {
      problems += "\n  " + name + ": not in the checkpoint";
    } else if (weight->sizes() != tensor.sizes()) {
      problems += c10::str("\n  ", name, ": ", to_string(weight->sizes()), " in the checkpoint, ",
                           to_string(tensor.sizes()), " in the model");
    }
  }
  for (const std::string& name : weights.keys())
    if (!model.contains(name)) problems += "\n  " + name + ": not in the model";
  TORCH_CHECK(problems.empty(), folder.string(), " does not fit the model:", problems);
}

Fp32Options export_options(const fs::path& checkpoint_dir, const fs::path& output_dir,
                           const std::string& max_shard_size, bool safe_serialization,
                           const std::string& tag, bool exclude_frozen_parameters) {
  return {.checkpoint = checkpoint_dir,
          .tag = tag,
          .output = output_dir,
          .max_shard_size = max_shard_size.empty() ? std::numeric_limits<uint64_t>::max()
                                                   : parse_size(max_shard_size),
          .safetensors = safe_serialization,
          .exclude_frozen = exclude_frozen_parameters};
}

}  // namespace

torch::Dtype Fp32Tensor::dtype() const { return torch_dtype(record_.dtype); }

torch::Tensor Fp32Tensor::contiguous() const {
  if (data_.defined()) return data_;
  torch::Tensor out = torch::empty(sizes(), dtype());
  read_elements(record_, 0, out.view(-1), name_);
  return out;
}

Fp32StateDict get_fp32_state_dict_from_zero_checkpoint(const fs::path& checkpoint_dir,
                                                       const std::string& tag,
                                                       bool exclude_frozen_parameters,
                                                       bool lazy_mode) {
  const Checkpoint checkpoint = open_checkpoint(folder_of(checkpoint_dir, tag), /*threads=*/4);
  Fp32StateDict weights;
  std::unordered_map<const ByteSource*, torch::Tensor> read;
  for (auto& [name, record] : fp32_tensors(checkpoint, exclude_frozen_parameters)) {
    torch::Tensor data;
    if (!lazy_mode) {
      torch::Tensor& known = read[record.bytes.get()];
      if (!known.defined()) known = Fp32Tensor(name, record).contiguous();
      data = known;
    }
    weights.insert(name, Fp32Tensor(name, std::move(record), std::move(data)));
  }
  return weights;
}

void load_state_dict_from_zero_checkpoint(torch::nn::Module& model, const fs::path& checkpoint_dir,
                                          const std::string& tag) {
  const torch::NoGradGuard no_grad;
  const Fp32StateDict weights = get_fp32_state_dict_from_zero_checkpoint(
      checkpoint_dir, tag, /*exclude_frozen_parameters=*/false, /*lazy_mode=*/true);
  const auto tensors = tensors_of(model);
  check_fits(tensors, weights, folder_of(checkpoint_dir, tag));
  for (const auto& [name, tensor] : tensors.pairs()) {
    torch::Tensor(tensor).copy_(weights[name].contiguous());
  }
}

void load_state_dict_from_zero_checkpoint(StageModule& model, const ProcessGrid& grid,
                                          const fs::path& checkpoint_dir, const std::string& tag) {
  load_state_dict_from_zero_checkpoint(
      model, grid, open_checkpoint(folder_of(checkpoint_dir, tag), /*threads=*/1));
}

void load_state_dict_from_zero_checkpoint(StageModule& model, const ProcessGrid& grid,
                                          const Checkpoint& checkpoint, const Checkpoint* base) {
  const torch::NoGradGuard no_grad;
  std::vector<TensorRecord> weights;
  std::string missing;
  for (const ParamSpec& spec : model.params()) {
    weights.push_back(find_parameter(checkpoint, spec).weight());
    if (!weights.back().bytes && base) weights.back() = find_parameter(*base, spec).weight();
    if (!weights.back().bytes) missing += " " + spec.name;
  }
  TORCH_CHECK(missing.empty(), checkpoint.path.string(), ": the checkpoint has no parameter",
              missing);
  for (size_t i = 0; i < weights.size(); ++i) {
    const ParamSpec& spec = model.params()[i];
    if (spec.tensor.storage().nbytes() == 0) allocate_storage(spec.tensor);
    read_slice(weights[i], layout_of(spec, grid.topology, grid.coord), 0, spec.tensor.view(-1),
               c10::str(checkpoint.path.string(), ": ", spec.name));
  }
}

Fp32Report convert_zero_checkpoint_to_fp32_state_dict(
    const fs::path& checkpoint_dir, const fs::path& output_dir, const std::string& max_shard_size,
    bool safe_serialization, const std::string& tag, bool exclude_frozen_parameters) {
  return export_fp32(export_options(checkpoint_dir, output_dir, max_shard_size, safe_serialization,
                                    tag, exclude_frozen_parameters),
                     {});
}

Fp32Report convert_zero_checkpoint_to_state_dict(const fs::path& checkpoint_dir,
                                                 const fs::path& output_dir, torch::Dtype dtype,
                                                 const std::string& max_shard_size,
                                                 bool safe_serialization, const std::string& tag,
                                                 bool exclude_frozen_parameters) {
  TORCH_CHECK(
      dtype == torch::kFloat || dtype == torch::kHalf || dtype == torch::kBFloat16,
      "convert_zero_checkpoint_to_state_dict: expected dtype float32, float16 or bfloat16, got ",
      dtype);
  Fp32Options options = export_options(checkpoint_dir, output_dir, max_shard_size,
                                       safe_serialization, tag, exclude_frozen_parameters);
  options.dtype = dtype == torch::kFloat  ? DType::kFloat32
                  : dtype == torch::kHalf ? DType::kFloat16
                                          : DType::kBFloat16;
  return export_fp32(options, {});
}

c10::IValue clone_tensors_for_torch_save(const c10::IValue& item, torch::Device device) {
  const auto clone = [device](const c10::IValue& part) {
    return clone_tensors_for_torch_save(part, device);
  };
  if (item.isTensor() && item.toTensor().defined()) {
    const torch::Tensor copy =
        torch::empty(item.toTensor().sizes(), item.toTensor().options().device(device));
    return copy.copy_(item.toTensor().detach());
  }
  if (item.isTuple()) {
    std::vector<c10::IValue> parts;
    for (const c10::IValue& part : item.toTupleRef().elements()) parts.push_back(clone(part));
    return c10::ivalue::Tuple::create(std::move(parts));
  }
  if (item.isList()) {
    c10::List<c10::IValue> list = item.toList().copy();
    for (size_t i = 0; i < list.size(); ++i) list.set(i, clone(list.get(i)));
    return list;
  }
  if (item.isGenericDict()) {
    auto dict = item.toGenericDict().copy();
    for (const auto& entry : dict) dict.insert_or_assign(entry.key(), clone(entry.value()));
    return dict;
  }
  return item;
}

Value clone_tensors_for_torch_save(const Value& item) {
  std::unordered_map<const ByteSource*, BytesPtr> copies;
  return map_tensors(item, [&copies](TensorRecord tensor) {
    if (!tensor.bytes) return tensor;
    BytesPtr& copy = copies[tensor.bytes.get()];
    if (!copy) {
      std::vector<std::byte> bytes(tensor.nbytes());
      tensor.bytes->read(0, bytes);
      copy = std::make_shared<OwnedBytes>(std::move(bytes));
    }
    tensor.bytes = copy;
    return tensor;
  });
}

}  // namespace anymesh
