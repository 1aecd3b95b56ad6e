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

// Products of T are computed in this type, and values are rounded to T through it, as in c10's
// conversions on the CPU.
template <class T>
using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;

struct None {};  // the type of `rounded` if nothing is rounded

template <class T, class Rounded>
__global__ void adamw(T* weight, const T* gradient, T* exp_avg, T* exp_avg_sq, int64_t n,
                      AdamwCoefficients<T> k, Rounded* rounded) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += stride) {
    adamw_element(weight[i], gradient[i], exp_avg[i], exp_avg_sq[i], k);
    if constexpr (!std::is_same_v<Rounded, None>)
      rounded[i] = static_cast<Rounded>(static_cast<Wide<Rounded>>(weight[i]));
  }
}

// A block sums in double, in an order that depends on n alone.
template <class T>
__global__ void squares(const T* x, int64_t n, double* parts) {
  double sum = 0;
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += stride)
    sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  sum = sum_over_block(sum);
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
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

void launch_adamw(const AdamwState& s, const AdamwCoefficients<double>& k, CUstream_st* stream) {
  if (s.n == 0) return;
  const auto launch_of = [&](auto type, auto rounded_type) {
    using T = typename decltype(type)::type;
    using Rounded = typename decltype(rounded_type)::type;
    launch("adamw", adamw<T, Rounded>, blocks_for(s.n), kThreads, stream, static_cast<T*>(s.weight),
           static_cast<const T*>(s.gradient), static_cast<T*>(s.exp_avg),
           static_cast<T*>(s.exp_avg_sq), s.n, k.as<T>(), static_cast<Rounded*>(s.rounded));
  };
  const auto of_state = [&](auto type) {
    if (!s.rounded) return launch_of(type, Type<None>());
    of_type(s.rounded_to, [&](auto rounded_type) { launch_of(type, rounded_type); });
  };
  if (s.dtype == Element::Float) return of_state(Type<float>());
  of_state(Type<double>());
}

void launch_squares(const void* x, Element dtype, int64_t n, double* parts, CUstream_st* stream) {
  const auto launch_of = [&](auto type) {
    using T = typename decltype(type)::type;
    launch("squares", squares<T>, kSquareParts, kThreads, stream, static_cast<const T*>(x), n,
           parts);
  };
  if (dtype == Element::Float) return launch_of(Type<float>());
  launch_of(Type<double>());
}

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
