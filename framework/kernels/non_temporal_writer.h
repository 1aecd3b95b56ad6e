#pragma once

#include <cstdint>
#include <cstring>
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace anymesh {

// Writes one thread's part of an output of `numel` elements, at most kBlock at a time. A large
// output goes past the caches. Otherwise each cache line is read before it is written, which is
// half of the time.
//
//   NonTemporalWriter<T, kBlock> writer(y.numel());
//   writer.write(y + i, n, [&](T* place) { gelu(x + i, n, place); });
//
// Other threads may read the output once the writer is destroyed.
template <class T, int64_t kBlock>
class NonTemporalWriter {
 public:
#if defined(__x86_64__)
  explicit NonTemporalWriter(int64_t numel) : streams_(numel * int64_t{sizeof(T)} >= kStreamed) {}
  ~NonTemporalWriter() {
    if (streams_) _mm_sfence();
  }
  NonTemporalWriter(const NonTemporalWriter&) = delete;
  NonTemporalWriter& operator=(const NonTemporalWriter&) = delete;

  template <class Make>
  void write(T* to, int64_t n, const Make& make) {
    if (!streams_ || reinterpret_cast<uintptr_t>(to) % kVectorBytes != 0) return make(to);
    make(block_);
    const auto bytes = static_cast<size_t>(n) * sizeof(T), vectors = bytes / kVectorBytes;
    for (size_t i = 0; i < vectors; ++i)
      _mm_stream_si128(reinterpret_cast<__m128i*>(to) + i,
                       reinterpret_cast<const __m128i*>(block_)[i]);
    std::memcpy(reinterpret_cast<char*>(to) + vectors * kVectorBytes,
                reinterpret_cast<const char*>(block_) + vectors * kVectorBytes,
                bytes % kVectorBytes);
  }

 private:
  static constexpr int64_t kStreamed = 1 << 21;  // bytes
  static constexpr size_t kVectorBytes = sizeof(__m128i);

  bool streams_;
  alignas(64) T block_[kBlock];
#else
  explicit NonTemporalWriter(int64_t) {}

  template <class Make>
  void write(T* to, int64_t, const Make& make) {
    make(to);
  }
#endif
};

}  // namespace anymesh
