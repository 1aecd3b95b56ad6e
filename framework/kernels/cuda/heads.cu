// Cuts queries and keys out of the rows of a projection, turned by their positions, and puts their
// gradients back. A block has a token. All arithmetic is fp32.
#include "framework/kernels/cuda/launch.h"
#include "framework/kernels/cuda/rows.h"

namespace anymesh {
namespace {

// The place of a token's element of `heads`.
template <class T>
__device__ T* head_of(const HeadTensor& heads, int64_t sample, int64_t position, int64_t head) {
  return static_cast<T*>(heads.at) + sample * heads.of_sample + position * heads.of_position +
         head * heads.of_head;
}

// Loads elements [i, i + N) of a head x, turned forwards or backwards: (x0, x1) of a pair becomes
// (x0 cos - x1 sin, x1 cos + x0 sin), with the sine negative for backwards.
template <class T, int N>
__device__ void load_turned(const HeadRows& r, const T* x, int64_t i, int64_t row, float sign,
                            float (&to)[N]) {
  load(x + i, to);
  if (i >= 2 * r.half) return;
  const bool second = i >= r.half;
  const int64_t pair = second ? i - r.half : i;
  float other[N], cos[N], sin[N];
  load(x + (second ? pair : i + r.half), other);
  load(static_cast<const T*>(r.cos) + row * r.half + pair, cos);
  load(static_cast<const T*>(r.sin) + row * r.half + pair, sin);
  if (!second) sign = -sign;
  for (int j = 0; j < N; ++j) to[j] = to[j] * cos[j] + sign * other[j] * sin[j];
}

// kJoins: from heads to the projection, and else from it to the heads.
template <class T, int N, bool kJoins>
__global__ void move_heads(HeadRows r) {
  const int64_t token = blockIdx.x, sample = token / r.positions, position = token % r.positions,
                row = r.rows_of_tables ? r.rows_of_tables[token] : position;
  const int d = static_cast<int>(r.d), group = static_cast<int>(r.group), slots = group + 2;
  T* const projected = static_cast<T*>(r.projected) + token * r.groups * slots * d;
  for_packs<N>(r.groups * slots * d, [&](int64_t column) {
    const int slot = static_cast<int>(column) / d, i = static_cast<int>(column) % d,
              of_group = slot / slots, in_group = slot % slots;
    const bool is_query = in_group < group, is_value = in_group == group + 1;
    const HeadTensor heads = is_query ? r.q : is_value ? r.v : r.k;
    if (!heads.at) return;
    T* const head =
        head_of<T>(heads, sample, position, is_query ? of_group * group + in_group : of_group);
    T* const place = projected + int64_t{slot} * d;
    float x[N];
    if (is_value || r.half == 0) {
      load((kJoins ? head : place) + i, x);
    } else {
      load_turned(r, kJoins ? head : place, i, row, kJoins ? -1.f : 1.f, x);
    }
    store(x, (kJoins ? place : head) + i);
  });
}

template <bool kJoins>
void launch_heads(const HeadRows& r, CUstream_st* stream) {
  // Packs begin at multiples of this, in every tensor.
  const int64_t unit =
      std::gcd(std::gcd(r.d, r.half), std::gcd(std::gcd(r.q.unit(), r.k.unit()), r.v.unit()));
  of_rows(r, unit, {r.projected, r.q.at, r.k.at, r.v.at, r.cos, r.sin}, [&](auto type, auto width) {
    launch(kJoins ? "join_heads" : "split_heads",
           move_heads<typename decltype(type)::type, width.value, kJoins>, r.rows, kThreads, stream,
           r);
  });
}

}  // namespace

void launch_split_heads(const HeadRows& rows, CUstream_st* stream) {
  launch_heads<false>(rows, stream);
}
void launch_join_heads(const HeadRows& rows, CUstream_st* stream) {
  launch_heads<true>(rows, stream);
}

}  // namespace anymesh
