// Norms, and sums over the rows of a matrix, as gradients of weights and biases are. All arithmetic
// is fp32.
#include <cmath>

#include "framework/kernels/cuda/launch.h"
#include "framework/kernels/cuda/rows.h"

namespace anymesh {
namespace {

// The threads that have one row: a warp where the rows are short, and a block where they are long.
template <int kTeam>
struct Team {
  static constexpr int64_t kRows = kThreads / kTeam;  // of a block
  __device__ static int64_t row() { return blockIdx.x * kRows + threadIdx.x / kTeam; }
  template <int N, class Work>
  __device__ static void for_packs(int64_t columns, const Work& work) {
    for (int64_t i = threadIdx.x % kTeam * N; i < columns; i += int64_t{kTeam} * N) work(i);
  }
  __device__ static float sum(float x) {
    if constexpr (kTeam == kWarp) return sum_over_warp(x);
    return sum_over_block(x);
  }
};

template <class T, int N, int kTeam>
__global__ void norm(NormRows r) {
  using Threads = Team<kTeam>;
  const int64_t row = Threads::row();
  if (row >= r.rows) return;
  const T *x = row_of<T>(r.x, r.h, row), *y = row_of<T>(r.y, r.h, row);
  const auto *weight = static_cast<const T*>(r.weight), *bias = static_cast<const T*>(r.bias);
  T *sum = row_of<T>(r.sum, r.h, row), *normed = row_of<T>(r.normed, r.h, row);
  float total = 0, squares = 0;
  Threads::template for_packs<N>(r.h, [&](int64_t i) {
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
  const float mean = r.bias ? Threads::sum(total) / n : 0;
  Threads::template for_packs<N>(r.h, [&](int64_t i) {
    float a[N];
    load(normed_of + i, a);
    for (int j = 0; j < N; ++j) squares += (a[j] - mean) * (a[j] - mean);
  });
  const float inverse = 1 / std::sqrt(Threads::sum(squares) / n + r.epsilon);
  Threads::template for_packs<N>(r.h, [&](int64_t i) {
    float a[N], w[N], b[N] = {};
    load(normed_of + i, a);
    load(weight + i, w);
    if (r.bias) load(bias + i, b);
    for (int j = 0; j < N; ++j) a[j] = (a[j] - mean) * inverse * (w[j] + r.offset) + b[j];
    store(a, normed + i);
  });
  if (threadIdx.x % kTeam != 0) return;
  r.moments[2 * row] = mean;
  r.moments[2 * row + 1] = inverse;
}

template <class T, int N, int kTeam>
__global__ void norm_backward(NormGradients g) {
  using Threads = Team<kTeam>;
  const int64_t row = Threads::row();
  if (row >= g.rows) return;
  const T *x = row_of<T>(g.x, g.h, row), *dy = row_of<T>(g.dy, g.h, row),
          *dsum = row_of<T>(g.dsum, g.h, row);
  const auto* weight = static_cast<const T*>(g.weight);
  T* dx = row_of<T>(g.dx, g.h, row);
  const float mean = g.moments[2 * row], inverse = g.moments[2 * row + 1],
              n = static_cast<float>(g.h);
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
  Threads::template for_packs<N>(g.h, [&](int64_t i) {
    float normed[N], scaled[N];
    load_both(i, normed, scaled);
    for (int j = 0; j < N; ++j) {
      total += scaled[j];
      with_x += scaled[j] * normed[j];
    }
  });
  const float slope = Threads::sum(with_x) / n, level = g.has_bias ? Threads::sum(total) / n : 0;
  Threads::template for_packs<N>(g.h, [&](int64_t i) {
    float normed[N], scaled[N], d[N] = {};
    load_both(i, normed, scaled);
    if (g.dsum) load(dsum + i, d);
    for (int j = 0; j < N; ++j) d[j] += (scaled[j] - level - normed[j] * slope) * inverse;
    store(d, dx + i);
  });
}

constexpr int64_t tiles_of(int64_t columns, int n) {
  return (columns + kWarp * n - 1) / (kWarp * n);
}

// Writes kSums sums of each column over a part of the rows to parts [kRowParts, kSums, columns]. A
// block has a part of the rows and a tile of columns. A warp has one row at a time, of which
// add(row, column, sums) adds the N columns from `column`.
template <int N, int kSums, class Add>
__device__ void sum_rows(int64_t rows, int64_t columns, float* parts, const Add& add) {
  constexpr int kTile = kWarp * N;
  __shared__ float of_warps[kWarps][kSums * kTile];
  const int64_t tiles = tiles_of(columns, N), part = blockIdx.x / tiles,
                first = blockIdx.x % tiles * kTile, each = (rows + kRowParts - 1) / kRowParts,
                end = part * each + each < rows ? part * each + each : rows;
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = static_cast<int>(threadIdx.x) / kWarp;
  float sums[kSums][N] = {};
  if (const int64_t column = first + lane * N; column < columns)
    for (int64_t row = part * each + warp; row < end; row += kWarps) add(row, column, sums);
  for (int s = 0; s < kSums; ++s)
    for (int j = 0; j < N; ++j) of_warps[warp][s * kTile + lane * N + j] = sums[s][j];
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kSums * kTile; i += kThreads) {
    float sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += of_warps[w][i];
    if (const int64_t column = first + i % kTile; column < columns)
      parts[(part * kSums + i / kTile) * columns + column] = sum;
  }
}

template <class T, int N>
__global__ void norm_weights(NormGradients g) {
  sum_rows<N, 2>(g.rows, g.h, g.parts, [&](int64_t row, int64_t column, float(&sums)[2][N]) {
    float x[N], dy[N];
    load(row_of<T>(g.x, g.h, row) + column, x);
    load(row_of<T>(g.dy, g.h, row) + column, dy);
    const float mean = g.moments[2 * row], inverse = g.moments[2 * row + 1];
    for (int j = 0; j < N; ++j) {
      sums[0][j] += dy[j] * (x[j] - mean) * inverse;
      sums[1][j] += dy[j];
    }
  });
}

template <class T, int N>
__global__ void column_sums(ColumnSums c) {
  sum_rows<N, 1>(c.rows, c.columns, c.parts, [&](int64_t row, int64_t column, float(&sums)[1][N]) {
    float x[N];
    load(row_of<T>(c.x, c.columns, row) + column, x);
    for (int j = 0; j < N; ++j) sums[0][j] += x[j];
  });
}

// Calls work(Width<threads of a row>, blocks) for rows of h elements, N of them a pack.
template <class Work>
void of_team(int64_t rows, int64_t h, int n, const Work& work) {
  if (h <= 4 * kWarp * n) return work(Width<kWarp>(), (rows + kWarps - 1) / kWarps);
  work(Width<kThreads>(), rows);
}

}  // namespace

void launch_norm(const NormRows& r, CUstream_st* stream) {
  of_rows(r, r.h, {r.x, r.y, r.sum, r.weight, r.bias, r.normed}, [&](auto type, auto width) {
    of_team(r.rows, r.h, width.value, [&](auto team, int64_t blocks) {
      launch("norm", norm<typename decltype(type)::type, width.value, team.value>, blocks, kThreads,
             stream, r);
    });
  });
}

void launch_norm_backward(const NormGradients& g, CUstream_st* stream) {
  of_rows(g, g.h, {g.x, g.dy, g.dsum, g.weight, g.dx}, [&](auto type, auto width) {
    using T = typename decltype(type)::type;
    of_team(g.rows, g.h, width.value, [&](auto team, int64_t blocks) {
      launch("norm_backward", norm_backward<T, width.value, team.value>, blocks, kThreads, stream,
             g);
    });
    launch("norm_weights", norm_weights<T, width.value>, tiles_of(g.h, width.value) * kRowParts,
           kThreads, stream, g);
  });
}

void launch_column_sums(const ColumnSums& c, CUstream_st* stream) {
  of_rows(c, c.columns, {c.x}, [&](auto type, auto width) {
    launch("column_sums", column_sums<typename decltype(type)::type, width.value>,
           tiles_of(c.columns, width.value) * kRowParts, kThreads, stream, c);
  });
}

}  // namespace anymesh
