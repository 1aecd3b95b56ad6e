#include "framework/checkpoint/torch_bridge.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <array>

#include "framework/checkpoint/host_reader.h"

namespace anymesh {
namespace {

constexpr std::array<std::pair<DType, torch::Dtype>, 21> kDtypes{
    {{DType::kFloat64, torch::kDouble},
     {DType::kFloat32, torch::kFloat},
     {DType::kFloat16, torch::kHalf},
     {DType::kBFloat16, torch::kBFloat16},
     {DType::kFloat8E4M3fn, torch::kFloat8_e4m3fn},
     {DType::kFloat8E5M2, torch::kFloat8_e5m2},
     {DType::kFloat8E4M3fnuz, torch::kFloat8_e4m3fnuz},
     {DType::kFloat8E5M2fnuz, torch::kFloat8_e5m2fnuz},
     {DType::kFloat8E8M0fnu, c10::ScalarType::Float8_e8m0fnu},
     {DType::kComplex128, torch::kComplexDouble},
     {DType::kComplex64, torch::kComplexFloat},
     {DType::kComplex32, torch::kComplexHalf},
     {DType::kInt64, torch::kLong},
     {DType::kInt32, torch::kInt},
     {DType::kInt16, torch::kShort},
     {DType::kInt8, torch::kChar},
     {DType::kUInt64, torch::kUInt64},
     {DType::kUInt32, torch::kUInt32},
     {DType::kUInt16, torch::kUInt16},
     {DType::kUInt8, torch::kByte},
     {DType::kBool, torch::kBool}}};

DType file_dtype(torch::Dtype dtype) {
  for (const auto& [ours, torchs] : kDtypes) {
    if (torchs == dtype) return ours;
  }
  TORCH_CHECK(false, "tensors of ", dtype, " cannot be saved");
}

HostReader reader_of(const StateTensor& piece) {
  if (piece.tensor().defined() && !piece.tensor().is_cpu()) return host_reader(piece.tensor());
  return [piece](uint64_t offset, std::span<std::byte> out) { piece.read_bytes(offset, out); };
}

// Returns the concatenated bytes of the pieces, read from where they are.
BytesPtr bytes_of(const std::vector<StateTensor>& pieces) {
  std::vector<std::pair<uint64_t, HostReader>> readers;  // with their sizes in bytes
  uint64_t total = 0;
  for (const StateTensor& piece : pieces) {
    const auto size = static_cast<uint64_t>(piece.numel() * piece.element_size());
    readers.emplace_back(size, reader_of(piece));
    total += size;
  }
  auto read = [readers = std::move(readers)](uint64_t offset, std::span<std::byte> out) {
    for (const auto& [size, read_piece] : readers) {
      const size_t n = offset < size ? std::min<uint64_t>(size - offset, out.size()) : 0;
      if (n > 0) read_piece(offset, out.first(n));
      offset = n > 0 ? 0 : offset - size;
      out = out.subspan(n);
    }
  };
  return std::make_shared<ComputedBytes>(total, "state of the optimizer", std::move(read));
}

}  // namespace

TensorRecord record_of(const torch::Tensor& t) {
  TensorRecord record = record_of(StateTensor(t.detach().view(-1)));
  record.shape = t.sizes().vec();
  return record;
}

TensorRecord record_of(const StateTensor& state) {
  return record_of(std::vector{state}, state.dtype());
}

TensorRecord record_of(const std::vector<StateTensor>& pieces, torch::Dtype dtype) {
  int64_t numel = 0;
  for (const StateTensor& piece : pieces) numel += piece.numel();
  return {.dtype = file_dtype(dtype), .shape = {numel}, .bytes = bytes_of(pieces)};
}

void read_elements(const TensorRecord& record, int64_t begin, torch::Tensor out,
                   const std::string& name) {
  TORCH_CHECK(begin >= 0 && begin + out.numel() <= record.numel(), name, " has ", record.numel(),
              " elements ", to_string(record.shape), ", expected at least ", begin + out.numel());
  TORCH_CHECK(!is_complex(record.dtype) || out.is_complex(), name, " is ", dtype_name(record.dtype),
              ", expected real numbers");
  const bool here =
      torch_dtype(record.dtype) == out.scalar_type() && out.is_contiguous() && out.is_cpu();
  const torch::Tensor raw = here ? out : torch::empty(out.sizes(), torch_dtype(record.dtype));
  record.bytes->read(static_cast<uint64_t>(begin) * element_size(record.dtype),
                     {static_cast<std::byte*>(raw.data_ptr()), raw.nbytes()});
  if (!raw.is_same(out)) out.copy_(raw);
}

void read_elements(const TensorRecord& record, int64_t begin, const StateTensor& out,
                   const std::string& name) {
  out.fill([&](int64_t at, const torch::Tensor& block) {
    read_elements(record, begin + at, block, name);
  });
}

ShardLayout layout_of(const ParamSpec& spec, const Topology& mesh, Coord at) {
  CutRule rule{.replicated = spec.split_dim < 0, .dim = std::max(spec.split_dim, 0)};
  if (spec.sub_params > 1)
    rule.parts.assign(spec.sub_params, spec.shape[rule.dim] / spec.sub_params);
  if (spec.vocabulary) rule.padded = spec.tensor.size(0) * mesh.tp_size;
  const ShardLayout slice = ShardLayout::make(spec.shape, rule, mesh.tp_size, at.tp);
  return spec.experts ? slice.block(mesh.ep_rank_of(at), mesh.ep_size) : slice;
}

void read_slice(const TensorRecord& whole, const ShardLayout& layout, int64_t begin,
                torch::Tensor out, const std::string& name) {
  // There may be many runs. A GPU tensor gets them all in one copy.
  const torch::Tensor host = out.is_cpu() ? out : torch::empty(out.sizes(), out.scalar_type());
  host.zero_();
  layout.for_each_run(begin, out.numel(), [&](int64_t full, int64_t shard, int64_t n) {
    read_elements(whole, full, host.narrow(0, shard - begin, n), name);
  });
  if (!host.is_same(out)) out.copy_(host);
}

torch::Dtype torch_dtype(DType dtype) {
  for (const auto& [ours, torchs] : kDtypes) {
    if (ours == dtype) return torchs;
  }
  TORCH_INTERNAL_ASSERT(false);
}

}  // namespace anymesh
