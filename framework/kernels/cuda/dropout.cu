#include <algorithm>
#include <type_traits>

#include "framework/kernels/cuda/launch.h"
#include "framework/kernels/cuda/simt.h"
#include "framework/kernels/philox.h"

namespace anymesh {
namespace {

constexpr int64_t kMaxBlocks = 4096;  // each thread then takes several elements

int64_t blocks_for(int64_t threads) {
  return std::clamp<int64_t>((threads + kThreads - 1) / kThreads, 1, kMaxBlocks);
}

// Each thread draws Philox blocks, which decide four elements each.
template <class T>
__global__ void dropout(const T* x, T* y, int64_t n, DropoutKey key) {
  using W = Wide<T>;
  const W scale = static_cast<W>(key.scale);
  const int64_t last = (key.first + n - 1) / 4, stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t block = key.first / 4 + int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
       block <= last; block += stride) {
    const PhiloxBlock bits =
        philox({static_cast<uint32_t>(block), stream_word(key.stream, block),
                static_cast<uint32_t>(key.sample), static_cast<uint32_t>(key.sample >> 32)},
               key.seed);
    for (int word = 0; word < 4; ++word) {
      const int64_t i = 4 * block + word - key.first;
      if (i < 0 || i >= n) continue;
      y[i] = bits[word] < key.least ? T(0.f) : static_cast<T>(static_cast<W>(x[i]) * scale);
    }
  }
}

}  // namespace

void launch_dropout(const void* x, void* y, Element dtype, int64_t n, const DropoutKey& key,
                    CUstream_st* stream) {
  if (n == 0) return;
  of_type(dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    launch("dropout", dropout<T>, blocks_for(n / 4 + 2), kThreads, stream, static_cast<const T*>(x),
           static_cast<T*>(y), n, key);
  });
}

}  // namespace anymesh
