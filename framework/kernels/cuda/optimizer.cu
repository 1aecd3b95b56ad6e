// The optimizer's kernels. A block has a chunk of a piece, and a launch has many pieces.
#include <algorithm>
#include <limits>
#include <type_traits>

#include "framework/kernels/cuda/launch.h"
#include "framework/kernels/cuda/simt.h"

namespace anymesh {
namespace {

constexpr int kPieces = 64;                   // of a launch, whose arguments have 4 KB
constexpr int64_t kChunk = int64_t{1} << 14;  // elements of a block

int64_t chunks_of(int64_t n) { return (n + kChunk - 1) / kChunk; }

template <class Piece>
struct Pieces {
  Piece at[kPieces];
  unsigned first_block[kPieces];
  int count = 0;
  int64_t blocks = 0;
};

// Calls work(pieces) for as many pieces as fit, until all have had their turn.
template <class Piece, class Work>
void for_launches(const std::vector<Piece>& all, const Work& work) {
  Pieces<Piece> pieces;
  for (const Piece& piece : all) {
    if (piece.n == 0) continue;
    pieces.at[pieces.count] = piece;
    pieces.first_block[pieces.count++] = static_cast<unsigned>(pieces.blocks);
    pieces.blocks += chunks_of(piece.n);
    if (pieces.count < kPieces) continue;
    work(pieces);
    pieces.count = 0;
    pieces.blocks = 0;
  }
  if (pieces.count > 0) work(pieces);
}

// Calls work(piece, i, Width<N>) for the elements [i, i + N) of this block's chunk: N is kWidth
// where `is_aligned(piece)`, and 1 elsewhere.
template <int kWidth, class Piece, class Aligned, class Work>
__device__ void for_chunk(const Pieces<Piece>& pieces, const Aligned& is_aligned,
                          const Work& work) {
  int at = 0;  // the last piece that begins at this block or before
  for (int step = kPieces / 2; step > 0; step /= 2)
    if (at + step < pieces.count && pieces.first_block[at + step] <= blockIdx.x) at += step;
  const Piece piece = pieces.at[at];
  const int64_t begin = int64_t{blockIdx.x - pieces.first_block[at]} * kChunk,
                end = begin + kChunk < piece.n ? begin + kChunk : piece.n,
                rest = is_aligned(piece) ? end - (end - begin) % kWidth : begin;
  for (int64_t i = begin + int64_t{threadIdx.x} * kWidth; i < rest; i += kThreads * kWidth)
    work(piece, i, Width<kWidth>());
  for (int64_t i = rest + threadIdx.x; i < end; i += kThreads) work(piece, i, Width<1>());
}

template <class T, int N>
__device__ bool begins_pack(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % alignof(Pack<T, N>) == 0;
}
template <class T, int N>
__device__ Pack<T, N>& pack_at(void* pointer, int64_t i) {
  return *reinterpret_cast<Pack<T, N>*>(static_cast<T*>(pointer) + i);
}
template <class T, int N>
__device__ const Pack<T, N>& pack_at(const void* pointer, int64_t i) {
  return *reinterpret_cast<const Pack<T, N>*>(static_cast<const T*>(pointer) + i);
}

struct None {};  // the type of `rounded` if nothing is rounded

template <class T, class Rounded>
__global__ void adamw(Pieces<AdamwPiece> pieces, AdamwCoefficients<T> k) {
  constexpr int kWidth = 16 / sizeof(T);
  constexpr bool rounds = !std::is_same_v<Rounded, None>;
  const auto is_aligned = [](const AdamwPiece& p) {
    bool all = true;
    for (const void* pointer :
         {static_cast<const void*>(p.weight), p.gradient, static_cast<const void*>(p.exp_avg),
          static_cast<const void*>(p.exp_avg_sq)})
      all = all && begins_pack<T, kWidth>(pointer);
    if constexpr (rounds) all = all && begins_pack<Rounded, kWidth>(p.rounded);
    return all;
  };
  for_chunk<kWidth>(pieces, is_aligned, [&](const AdamwPiece& p, int64_t i, auto width) {
    constexpr int N = decltype(width)::value;
    Pack<T, N> weight = pack_at<T, N>(p.weight, i), m = pack_at<T, N>(p.exp_avg, i),
               v = pack_at<T, N>(p.exp_avg_sq, i);
    const Pack<T, N> gradient = pack_at<T, N>(p.gradient, i);
    for (int j = 0; j < N; ++j) adamw_element(weight.at[j], gradient.at[j], m.at[j], v.at[j], k);
    pack_at<T, N>(p.weight, i) = weight;
    pack_at<T, N>(p.exp_avg, i) = m;
    pack_at<T, N>(p.exp_avg_sq, i) = v;
    if constexpr (rounds) {
      Pack<Rounded, N> rounded;
      for (int j = 0; j < N; ++j)
        rounded.at[j] = static_cast<Rounded>(static_cast<Wide<Rounded>>(weight.at[j]));
      pack_at<Rounded, N>(p.rounded, i) = rounded;
    }
  });
}

// A block sums in double, in an order that depends on the pieces alone.
template <class T>
__global__ void squares(Pieces<SquaresPiece> pieces, double* parts) {
  constexpr int kWidth = 16 / sizeof(T);
  double sum = 0;
  for_chunk<kWidth>(
      pieces, [](const SquaresPiece& p) { return begins_pack<T, kWidth>(p.x); },
      [&](const SquaresPiece& p, int64_t i, auto width) {
        const auto pack = pack_at<T, decltype(width)::value>(p.x, i);
        for (const T x : pack.at) sum += static_cast<double>(x) * static_cast<double>(x);
      });
  sum = sum_over_block(sum);
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

// Calls work(Type<float>) or work(Type<double>).
template <class Work>
void of_state(Element dtype, const Work& work) {
  if (dtype == Element::Float) return work(Type<float>());
  work(Type<double>());
}

}  // namespace

void launch_adamw(const std::vector<AdamwPiece>& pieces, Element dtype, Element rounded_to,
                  const AdamwCoefficients<double>& k, CUstream_st* stream) {
  static_assert(sizeof(Pieces<AdamwPiece>) + sizeof k <= 4096);
  const auto launch_of = [&](auto type, auto rounded_type) {
    using T = typename decltype(type)::type;
    for_launches(pieces, [&](const Pieces<AdamwPiece>& some) {
      launch("adamw", adamw<T, typename decltype(rounded_type)::type>, some.blocks, kThreads,
             stream, some, k.as<T>());
    });
  };
  of_state(dtype, [&](auto type) {
    if (pieces.empty() || !pieces[0].rounded) return launch_of(type, Type<None>());
    of_type(rounded_to, [&](auto rounded_type) { launch_of(type, rounded_type); });
  });
}

int64_t square_parts(const std::vector<SquaresPiece>& pieces) {
  int64_t parts = 0;
  for (const SquaresPiece& piece : pieces) parts += chunks_of(piece.n);
  return parts;
}

void launch_squares(const std::vector<SquaresPiece>& pieces, Element dtype, double* parts,
                    CUstream_st* stream) {
  of_state(dtype, [&](auto type) {
    for_launches(pieces, [&](const Pieces<SquaresPiece>& some) {
      launch("squares", squares<typename decltype(type)::type>, some.blocks, kThreads, stream, some,
             parts);
      parts += some.blocks;
    });
  });
}

}  // namespace anymesh
