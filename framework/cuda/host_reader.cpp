#include <ATen/Functions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <cstring>
#include <optional>

#include "framework/cuda/cuda.h"
#include "framework/cuda/event.h"
#include "framework/cuda/two_halves.h"

namespace anymesh {
namespace {

constexpr size_t kPiece = 1 << 19;  // bytes: a quarter of a save's read

}  // namespace

HostReader host_reader(const torch::Tensor& t) {
  TORCH_INTERNAL_ASSERT(t.is_cuda() && t.is_contiguous());
  const auto written =
      std::make_shared<const CudaEvent>(c10::cuda::getCurrentCUDAStream(t.device().index()));
  return [t, written](uint64_t offset, std::span<std::byte> out) {
    TORCH_INTERNAL_ASSERT(offset + out.size() <= t.nbytes());
    const c10::cuda::CUDAGuard guard(t.device());
    const cudaStream_t stream = c10::cuda::getStreamFromPool();
    written->hold_back(stream);
    // Taken from the host allocator's cache, so that no page is locked anew.
    const torch::Tensor halves = at::empty({2, static_cast<int64_t>(kPiece)},
                                           torch::dtype(torch::kByte).pinned_memory(true));
    const auto half_at = [&](size_t half) { return halves.data_ptr<uint8_t>() + half * kPiece; };
    const auto* from = static_cast<const std::byte*>(t.const_data_ptr()) + offset;
    std::optional<CudaEvent> arrived[2];
    in_two_halves(
        out.size(), kPiece,
        [&](size_t at, size_t n, size_t half) {
          C10_CUDA_CHECK(
              cudaMemcpyAsync(half_at(half), from + at, n, cudaMemcpyDeviceToHost, stream));
          arrived[half].emplace(stream);
        },
        [&](size_t at, size_t n, size_t half) {
          arrived[half]->wait();
          std::memcpy(out.data() + at, half_at(half), n);
        });
  };
}

}  // namespace anymesh
