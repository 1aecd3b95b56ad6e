// SwiGLU and the cross entropy: a block has one row. All arithmetic is fp32.
#include <cmath>

#include "framework/kernels/cuda/launch.h"
#include "framework/kernels/cuda/rows.h"

namespace anymesh {
namespace {

__device__ float sigmoid(float x) { return 1 / (1 + std::exp(-x)); }

template <class T, int N>
__global__ void swiglu(SwigluRows r) {
  const T* x = row_of<T>(r.x, 2 * r.f);
  T* y = row_of<T>(r.out, r.f);
  for_packs<N>(r.f, [&](int64_t i) {
    float gate[N], up[N];
    load(x + i, gate);
    load(x + r.f + i, up);
    for (int j = 0; j < N; ++j) up[j] *= gate[j] * sigmoid(gate[j]);
    store(up, y + i);
  });
}

template <class T, int N>
__global__ void swiglu_backward(SwigluRows r) {
  const T *x = row_of<T>(r.x, 2 * r.f), *dy = row_of<T>(r.dy, r.f);
  T* dx = row_of<T>(r.out, 2 * r.f);
  for_packs<N>(r.f, [&](int64_t i) {
    float gate[N], up[N], d[N];
    load(x + i, gate);
    load(x + r.f + i, up);
    load(dy + i, d);
    for (int j = 0; j < N; ++j) {
      const float g = gate[j], s = sigmoid(g);
      gate[j] = d[j] * up[j] * (s + g * s * (1 - s));
      up[j] = d[j] * g * s;
    }
    store(gate, dx + i);
    store(up, dx + r.f + i);
  });
}

// Works in one pass: a thread's sum is relative to the greatest value it has met.
template <class T, int N>
__global__ void row_sums(VocabularyRows r, float* maxima, float* sums) {
  const T* logits = row_of<T>(r.logits, r.columns);
  float maximum = -INFINITY, sum = 0;
  for_packs<N>(r.real, [&](int64_t i) {
    float x[N], greatest = maximum;
    load(logits + i, x);
    for (int j = 0; j < N; ++j) {
      if (i + j >= r.real) x[j] = -INFINITY;
      greatest = x[j] > greatest ? x[j] : greatest;
    }
    if (greatest > maximum) {
      sum *= std::exp(maximum - greatest);
      maximum = greatest;
    }
    const float shift = maximum > -INFINITY ? maximum : 0;
    for (int j = 0; j < N; ++j) sum += std::exp(x[j] - shift);
  });
  const float greatest = max_over_block(maximum);
  if (maximum > -INFINITY) sum *= std::exp(maximum - greatest);
  sum = sum_over_block(sum);
  if (threadIdx.x != 0) return;
  maxima[blockIdx.x] = greatest;
  sums[blockIdx.x] = sum;
}

template <class T, int N>
__global__ void logits_gradient(VocabularyRows r, const float* log_sums, const int64_t* targets,
                                const float* scales, void* gradient) {
  const T* logits = row_of<T>(r.logits, r.columns);
  T* out = row_of<T>(gradient, r.columns);
  const float log_sum = log_sums[blockIdx.x], scale = scales[blockIdx.x];
  const int64_t target = targets[blockIdx.x];
  for_packs<N>(r.columns, [&](int64_t i) {
    float x[N];
    load(logits + i, x);
    for (int j = 0; j < N; ++j) {
      const float softmax = i + j < r.real ? std::exp(x[j] - log_sum) : 0;
      x[j] = (i + j == target ? softmax - 1 : softmax) * scale;
    }
    store(x, out + i);
  });
}

}  // namespace

void launch_swiglu(const SwigluRows& r, CUstream_st* stream) {
  of_rows(r, r.f, {r.x, r.out}, [&](auto type, auto width) {
    launch("swiglu", swiglu<typename decltype(type)::type, width.value>, r.rows, kThreads, stream,
           r);
  });
}

void launch_swiglu_backward(const SwigluRows& r, CUstream_st* stream) {
  of_rows(r, r.f, {r.x, r.dy, r.out}, [&](auto type, auto width) {
    launch("swiglu_backward", swiglu_backward<typename decltype(type)::type, width.value>, r.rows,
           kThreads, stream, r);
  });
}

void launch_row_sums(const VocabularyRows& r, float* maxima, float* sums, CUstream_st* stream) {
  of_rows(r, r.columns, {r.logits}, [&](auto type, auto width) {
    launch("row_sums", row_sums<typename decltype(type)::type, width.value>, r.rows, kThreads,
           stream, r, maxima, sums);
  });
}

void launch_logits_gradient(const VocabularyRows& r, const float* log_sums, const int64_t* targets,
                            const float* scales, void* gradient, CUstream_st* stream) {
  of_rows(r, r.columns, {r.logits, gradient}, [&](auto type, auto width) {
    launch("logits_gradient", logits_gradient<typename decltype(type)::type, width.value>, r.rows,
           kThreads, stream, r, log_sums, targets, scales, gradient);
  });
}

}  // namespace anymesh
