// Kernels in which a block has one row, or in norm_weights a part of the rows. All arithmetic is
// fp32.
#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <type_traits>

#include "framework/kernels/cuda/launch.h"
#include "framework/kernels/cuda/simt.h"

namespace anymesh {
namespace {

__device__ float sigmoid(float x) { return 1 / (1 + std::exp(-x)); }

template <class T>
__device__ const T* row_of(const void* rows, int64_t width) {
  return static_cast<const T*>(rows) + int64_t{blockIdx.x} * width;
}
template <class T>
__device__ T* row_of(void* rows, int64_t width) {
  return static_cast<T*>(rows) + int64_t{blockIdx.x} * width;
}

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

template <class T, int N>
__global__ void norm(NormRows r) {
  const T *x = row_of<T>(r.x, r.h), *y = row_of<T>(r.y, r.h);
  const auto *weight = static_cast<const T*>(r.weight), *bias = static_cast<const T*>(r.bias);
  T *sum = row_of<T>(r.sum, r.h), *normed = row_of<T>(r.normed, r.h);
  float total = 0, squares = 0;
  for_packs<N>(r.h, [&](int64_t i) {
    float a[N], b[N] = {};
    load(x + i, a);
    if (r.y) load(y + i, b);
    for (int j = 0; j < N; ++j) {
      a[j] = static_cast<float>(static_cast<T>(a[j] + b[j]));  // the norm is of the rounded sum
      total += a[j];
    }
    if (r.y) store(a, sum + i);
  });
  const T* normed_of = r.y ? sum : x;  // a thread reads only its own writes
  const auto n = static_cast<float>(r.h);
  const float mean = r.bias ? sum_over_block(total) / n : 0;
  for_packs<N>(r.h, [&](int64_t i) {
    float a[N];
    load(normed_of + i, a);
    for (int j = 0; j < N; ++j) squares += (a[j] - mean) * (a[j] - mean);
  });
  const float inverse = 1 / std::sqrt(sum_over_block(squares) / n + r.epsilon);
  for_packs<N>(r.h, [&](int64_t i) {
    float a[N], w[N], b[N] = {};
    load(normed_of + i, a);
    load(weight + i, w);
    if (r.bias) load(bias + i, b);
    for (int j = 0; j < N; ++j) a[j] = (a[j] - mean) * inverse * (w[j] + r.offset) + b[j];
    store(a, normed + i);
  });
  if (threadIdx.x != 0) return;
  float* moments = r.moments + 2 * int64_t{blockIdx.x};
  moments[0] = mean;
  moments[1] = inverse;
}

template <class T, int N>
__global__ void norm_backward(NormGradients g) {
  const T *x = row_of<T>(g.x, g.h), *dy = row_of<T>(g.dy, g.h), *dsum = row_of<T>(g.dsum, g.h);
  const auto* weight = static_cast<const T*>(g.weight);
  T* dx = row_of<T>(g.dx, g.h);
  const float mean = g.moments[2 * int64_t{blockIdx.x}],
              inverse = g.moments[2 * int64_t{blockIdx.x} + 1], n = static_cast<float>(g.h);
  float total = 0, with_x = 0;
  // Computes normed, and scaled = dy * weight, for a pack.
  const auto load_both = [&](int64_t i, float(&normed)[N], float(&scaled)[N]) {
    float w[N];
    load(x + i, normed);
    load(dy + i, scaled);
    load(weight + i, w);
    for (int j = 0; j < N; ++j) {
      normed[j] = (normed[j] - mean) * inverse;
      scaled[j] *= w[j] + g.offset;
    }
  };
  for_packs<N>(g.h, [&](int64_t i) {
    float normed[N], scaled[N];
    load_both(i, normed, scaled);
    for (int j = 0; j < N; ++j) {
      total += scaled[j];
      with_x += scaled[j] * normed[j];
    }
  });
  const float slope = sum_over_block(with_x) / n,
              level = g.has_bias ? sum_over_block(total) / n : 0;
  for_packs<N>(g.h, [&](int64_t i) {
    float normed[N], scaled[N], d[N] = {};
    load_both(i, normed, scaled);
    if (g.dsum) load(dsum + i, d);
    for (int j = 0; j < N; ++j) d[j] += (scaled[j] - level - normed[j] * slope) * inverse;
    store(d, dx + i);
  });
}

// Each thread sums one column over a part of the rows.
template <class T>
__global__ void norm_weights(NormGradients g) {
  const int64_t column = blockIdx.x / kNormParts * kThreads + threadIdx.x,
                part = blockIdx.x % kNormParts, each = (g.rows + kNormParts - 1) / kNormParts,
                end = part * each + each < g.rows ? part * each + each : g.rows;
  if (column >= g.h) return;
  float dweight = 0, dbias = 0;
  for (int64_t row = part * each; row < end; ++row) {
    const int64_t i = row * g.h + column;
    const auto d = static_cast<float>(static_cast<const T*>(g.dy)[i]);
    dweight += d * (static_cast<float>(static_cast<const T*>(g.x)[i]) - g.moments[2 * row]) *
               g.moments[2 * row + 1];
    dbias += d;
  }
  g.parts[2 * part * g.h + column] = dweight;
  g.parts[(2 * part + 1) * g.h + column] = dbias;
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

template <int N>
using Width = std::integral_constant<int, N>;

bool are_aligned(std::initializer_list<const void*> pointers) {
  return std::all_of(pointers.begin(), pointers.end(), [](const void* pointer) {
    return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
  });
}

// Calls work(Type<T>, Width<N>) if there are rows. N elements are a whole pack if rows of `columns`
// begin at whole packs, otherwise N is 1.
template <class Rows, class Work>
void of_rows(const Rows& r, int64_t columns, std::initializer_list<const void*> pointers,
             const Work& work) {
  if (r.rows == 0) return;
  of_type(r.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    if constexpr (std::is_same_v<T, double>) {
      throw std::logic_error("no kernel over rows for Double");
    } else {
      constexpr int kPack = 16 / sizeof(T);
      if (columns % kPack == 0 && are_aligned(pointers)) return work(type, Width<kPack>());
      work(type, Width<1>());
    }
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

void launch_norm(const NormRows& r, CUstream_st* stream) {
  of_rows(r, r.h, {r.x, r.y, r.sum, r.weight, r.bias, r.normed}, [&](auto type, auto width) {
    launch("norm", norm<typename decltype(type)::type, width.value>, r.rows, kThreads, stream, r);
  });
}

void launch_norm_backward(const NormGradients& g, CUstream_st* stream) {
  of_rows(g, g.h, {g.x, g.dy, g.dsum, g.weight, g.dx}, [&](auto type, auto width) {
    using T = typename decltype(type)::type;
    launch("norm_backward", norm_backward<T, width.value>, g.rows, kThreads, stream, g);
    launch("norm_weights", norm_weights<T>, (g.h + kThreads - 1) / kThreads * kNormParts, kThreads,
           stream, g);
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
