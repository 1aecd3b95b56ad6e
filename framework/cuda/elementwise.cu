#include <algorithm>
#include <type_traits>

#include "framework/cuda/launch.h"
#include "framework/cuda/simt.h"
#include "framework/random/philox.h"

namespace anymesh {
namespace {

constexpr int64_t kMaxBlocks = 4096;  // each thread then takes several elements

int64_t blocks_for(int64_t threads) {
  return std::clamp<int64_t>((threads + kThreads - 1) / kThreads, 1, kMaxBlocks);
}

// By way of fp32, as c10's conversions on the CPU.
template <class T>
__host__ __device__ T rounded_to(double x) {
  return static_cast<T>(static_cast<float>(x));
}
template <>
__host__ __device__ double rounded_to<double>(double x) {
  return x;
}

// What products of T are made in.
template <class T>
struct Wide {
  using Type = float;
};
template <>
struct Wide<double> {
  using Type = double;
};

struct None {};  // in place of the dtype to which nothing is rounded

template <class T, class Rounded>
__global__ void adamw(T* weight, const T* gradient, T* exp_avg, T* exp_avg_sq, int64_t n,
                      AdamwCoefficients<T> k, Rounded* rounded) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += stride) {
    adamw_element(weight[i], gradient[i], exp_avg[i], exp_avg_sq[i], k);
    if constexpr (!std::is_same_v<Rounded, None>) rounded[i] = rounded_to<Rounded>(weight[i]);
  }
}

// A thread draws a block of Philox's, which decides four elements.
template <class T>
__global__ void dropout(const T* x, T* y, int64_t n, DropoutKey key) {
  using W = typename Wide<T>::Type;
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

template <class T, class Rounded>
void launch_adamw_of(const AdamwState& s, const AdamwCoefficients<double>& k, void* rounded,
                     CUstream_st* stream) {
  launch("adamw", adamw<T, Rounded>, blocks_for(s.n), kThreads, stream, static_cast<T*>(s.weight),
         static_cast<const T*>(s.gradient), static_cast<T*>(s.exp_avg),
         static_cast<T*>(s.exp_avg_sq), s.n, k.as<T>(), static_cast<Rounded*>(rounded));
}

template <class T>
void launch_adamw_of(const AdamwState& s, const AdamwCoefficients<double>& k, Elements rounded,
                     CUstream_st* stream) {
  if (!rounded.data) return launch_adamw_of<T, None>(s, k, nullptr, stream);
  switch (rounded.dtype) {
    case Element::Float:
      return launch_adamw_of<T, float>(s, k, rounded.data, stream);
    case Element::Double:
      return launch_adamw_of<T, double>(s, k, rounded.data, stream);
    case Element::Half:
      return launch_adamw_of<T, __half>(s, k, rounded.data, stream);
    case Element::BFloat16:
      return launch_adamw_of<T, __nv_bfloat16>(s, k, rounded.data, stream);
  }
}

template <class T>
void launch_dropout_of(const void* x, void* y, int64_t n, const DropoutKey& key,
                       CUstream_st* stream) {
  launch("dropout", dropout<T>, blocks_for(n / 4 + 2), kThreads, stream, static_cast<const T*>(x),
         static_cast<T*>(y), n, key);
}

}  // namespace

void launch_adamw(const AdamwState& state, const AdamwCoefficients<double>& coefficients,
                  Elements rounded, CUstream_st* stream) {
  if (state.n == 0) return;
  if (state.dtype == Element::Float)
    return launch_adamw_of<float>(state, coefficients, rounded, stream);
  launch_adamw_of<double>(state, coefficients, rounded, stream);
}

void launch_dropout(const void* x, Elements y, int64_t n, const DropoutKey& key,
                    CUstream_st* stream) {
  if (n == 0) return;
  switch (y.dtype) {
    case Element::Float:
      return launch_dropout_of<float>(x, y.data, n, key, stream);
    case Element::Double:
      return launch_dropout_of<double>(x, y.data, n, key, stream);
    case Element::Half:
      return launch_dropout_of<__half>(x, y.data, n, key, stream);
    case Element::BFloat16:
      return launch_dropout_of<__nv_bfloat16>(x, y.data, n, key, stream);
  }
}

}  // namespace anymesh
