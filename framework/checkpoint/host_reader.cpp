#include "framework/checkpoint/host_reader.h"

#include <ATen/Functions.h>
#include <c10/core/Event.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstring>
#include <memory>
#include <optional>

#include "framework/util/two_halves.h"

namespace anymesh {
namespace {

constexpr size_t kPiece = 1 << 19;  // bytes: a quarter of a save's read

}  // namespace

HostReader host_reader(const torch::Tensor& t) {
  TORCH_INTERNAL_ASSERT(!t.is_cpu() && t.is_contiguous());
  const auto written = std::make_shared<c10::Event>(t.device().type());
  written->record(c10::impl::VirtualGuardImpl(t.device().type()).getStream(t.device()));
  return [t, written](uint64_t offset, std::span<std::byte> out) {
    TORCH_INTERNAL_ASSERT(offset + out.size() <= t.nbytes());
    const c10::InferenceMode no_gradients;
    const c10::StreamGuard own(
        c10::impl::VirtualGuardImpl(t.device().type()).getStreamFromGlobalPool(t.device()));
    written->block(own.current_stream());
    // Taken from the host allocator's cache, so that no page is locked anew.
    const torch::Tensor halves = at::empty({2, static_cast<int64_t>(kPiece)},
                                           torch::dtype(torch::kByte).pinned_memory(true)),
                        bytes = t.detach().view(-1).view(torch::kByte);
    std::optional<c10::Event> arrived[2];
    in_two_halves(
        out.size(), kPiece,
        [&](size_t at, size_t n, size_t half) {
          const auto begin = static_cast<int64_t>(offset + at), count = static_cast<int64_t>(n);
          halves[static_cast<int64_t>(half)]
              .narrow(0, 0, count)
              .copy_(bytes.narrow(0, begin, count), /*non_blocking=*/true);
          arrived[half].emplace(t.device().type());
          arrived[half]->record(own.current_stream());
        },
        [&](size_t at, size_t n, size_t half) {
          arrived[half]->synchronize();
          std::memcpy(out.data() + at, halves.const_data_ptr<uint8_t>() + half * kPiece, n);
        });
  };
}

}  // namespace anymesh
