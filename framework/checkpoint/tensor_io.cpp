#include "framework/checkpoint/tensor_io.h"

#include <ATen/Functions.h>

#include <array>

namespace anymesh {
namespace {

constexpr std::array<std::pair<DType, torch::Dtype>, 10> kDtypes{
    {{DType::kFloat64, torch::kDouble},
     {DType::kFloat32, torch::kFloat},
     {DType::kFloat16, torch::kHalf},
     {DType::kBFloat16, torch::kBFloat16},
     {DType::kInt64, torch::kLong},
     {DType::kInt32, torch::kInt},
     {DType::kInt16, torch::kShort},
     {DType::kInt8, torch::kChar},
     {DType::kUInt8, torch::kByte},
     {DType::kBool, torch::kBool}}};

DType file_dtype(torch::Dtype dtype) {
  for (const auto& [ours, torchs] : kDtypes) {
    if (torchs == dtype) return ours;
  }
  TORCH_INTERNAL_ASSERT(false, "no file dtype for ", dtype);
}

std::span<const std::byte> bytes_of(const torch::Tensor& t) {
  TORCH_INTERNAL_ASSERT(t.is_contiguous() && t.device().is_cpu());
  return {static_cast<const std::byte*>(t.const_data_ptr()), t.nbytes()};
}

// MemoryPieces that own a reference to the tensors they read.
class TensorBytes : public MemoryPieces {
 public:
  explicit TensorBytes(const std::vector<torch::Tensor>& tensors)
      : MemoryPieces(spans(tensors)), tensors_(tensors) {}

 private:
  static std::vector<std::span<const std::byte>> spans(const std::vector<torch::Tensor>& tensors) {
    std::vector<std::span<const std::byte>> out;
    for (const torch::Tensor& t : tensors) out.push_back(bytes_of(t));
    return out;
  }
  std::vector<torch::Tensor> tensors_;
};

}  // namespace

TensorRecord record_of(const torch::Tensor& t) {
  return {.dtype = file_dtype(t.scalar_type()),
          .shape = t.sizes().vec(),
          .bytes = std::make_shared<TensorBytes>(std::vector{t.detach()})};
}

TensorRecord record_of(const std::vector<torch::Tensor>& pieces, torch::Dtype dtype) {
  int64_t numel = 0;
  for (const torch::Tensor& t : pieces) numel += t.numel();
  return {
      .dtype = file_dtype(dtype), .shape = {numel}, .bytes = std::make_shared<TensorBytes>(pieces)};
}

void read_elements(const TensorRecord& record, int64_t begin, torch::Tensor out,
                   const std::string& name) {
  TORCH_CHECK(begin >= 0 && begin + out.numel() <= record.numel(), name, " has ", record.numel(),
              " elements ", to_string(record.shape), ", expected at least ", begin + out.numel());
  const torch::Tensor raw = torch_dtype(record.dtype) == out.scalar_type() && out.is_contiguous()
                                ? out
                                : torch::empty(out.sizes(), torch_dtype(record.dtype));
  record.bytes->read(static_cast<uint64_t>(begin) * element_size(record.dtype),
                     {static_cast<std::byte*>(raw.data_ptr()), raw.nbytes()});
  if (!raw.is_same(out)) out.copy_(raw);
}

torch::Dtype torch_dtype(DType dtype) {
  for (const auto& [ours, torchs] : kDtypes) {
    if (ours == dtype) return torchs;
  }
  TORCH_INTERNAL_ASSERT(false);
}

}  // namespace anymesh
