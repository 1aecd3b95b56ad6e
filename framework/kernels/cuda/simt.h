// Helpers for writing kernels, besides CUDA C++. nvcc compiles them for GPUs; tests/kernels/cuda
// compiles the same sources for the CPU, where the threads of a block take turns.
#pragma once

#include <cstdint>
#include <type_traits>

#include "framework/kernels/cuda/launch.h"

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <stdexcept>
#include <string>

namespace anymesh {

// Launches kernel<<<blocks, threads>>>(arguments...) in `stream`. Throws if it does not start.
template <class... Parameters, class... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), int64_t blocks, int threads,
            CUstream_st* stream, Arguments... arguments) {
  kernel<<<static_cast<unsigned>(blocks), static_cast<unsigned>(threads), 0, stream>>>(
      arguments...);
  const cudaError_t status = cudaGetLastError();
  if (status == cudaSuccess) return;
  throw std::runtime_error(std::string("the kernel ") + name +
                           " was not launched: " + cudaGetErrorString(status));
}

}  // namespace anymesh
#else
#include <simt_on_cpu.h>  // of tests/kernels/cuda/simt
#endif

namespace anymesh {

constexpr int kThreads = 256, kWarp = 32, kWarps = kThreads / kWarp;  // per block

inline __device__ float sum_over_warp(float x) {
  for (int lane = kWarp / 2; lane > 0; lane /= 2) x += __shfl_xor_sync(~0u, x, lane);
  return x;
}

// Folds f over the values of a block's kThreads threads, always in the same order. All of the
// threads call it, and all have the result.
template <class T, class F>
__device__ T over_block(T x, const F& f) {
  __shared__ T of_warps[kWarps];
  for (int lane = kWarp / 2; lane > 0; lane /= 2) x = f(x, __shfl_xor_sync(~0u, x, lane));
  __syncthreads();  // until the last fold's values have been read
  if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = x;
  __syncthreads();
  x = of_warps[threadIdx.x % kWarps];
  for (int warp = kWarps / 2; warp > 0; warp /= 2) x = f(x, __shfl_xor_sync(~0u, x, warp));
  return x;
}
template <class T>
__device__ T sum_over_block(T x) {
  return over_block(x, [](T a, T b) { return a + b; });
}
inline __device__ float max_over_block(float x) {
  return over_block(x, [](float a, float b) { return a > b ? a : b; });
}

// Stands for T in the arguments of a generic function.
template <class T>
struct Type {
  using type = T;
};

// Calls work(Type<T>) with the T of `dtype`.
template <class Work>
void of_type(Element dtype, const Work& work) {
  switch (dtype) {
    case Element::Float:
      return work(Type<float>());
    case Element::Double:
      return work(Type<double>());
    case Element::Half:
      return work(Type<__half>());
    case Element::BFloat16:
      return work(Type<__nv_bfloat16>());
  }
}

// Products of T are computed in this type, and values are rounded to T through it, as in c10's
// conversions on the CPU.
template <class T>
using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;

// A number as an argument of a generic function.
template <int N>
using Width = std::integral_constant<int, N>;

// N elements in one access to memory: N * sizeof(T) is 16, or N is 1.
template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
  T at[N];
};
template <class T, int N>
__device__ void load(const T* from, float (&to)[N]) {
  const auto pack = *reinterpret_cast<const Pack<T, N>*>(from);
  for (int i = 0; i < N; ++i) to[i] = static_cast<float>(pack.at[i]);
}
template <class T, int N>
__device__ void store(const float (&from)[N], T* to) {
  Pack<T, N> pack;
  for (int i = 0; i < N; ++i) pack.at[i] = static_cast<T>(from[i]);
  *reinterpret_cast<Pack<T, N>*>(to) = pack;
}

// Calls work(i) for the first column i of each pack of a row, dealt out to the threads of its
// block.
template <int N, class Work>
__device__ void for_packs(int64_t columns, const Work& work) {
  for (int64_t i = int64_t{threadIdx.x} * N; i < columns; i += int64_t{kThreads} * N) work(i);
}

}  // namespace anymesh
