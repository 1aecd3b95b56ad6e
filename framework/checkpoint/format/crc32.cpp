#include "framework/checkpoint/format/crc32.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace anymesh {
namespace {

constexpr uint32_t kPolynomial = 0xEDB88320;  // reflected: bit 31 is x^0

constexpr auto kTables = [] {
  std::array<std::array<uint32_t, 256>, 8> tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? kPolynomial : 0);
    tables[0][byte] = crc;
  }
  for (size_t t = 1; t < 8; ++t) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t crc = tables[t - 1][byte];
      tables[t][byte] = crc >> 8 ^ tables[0][crc & 255];
    }
  }
  return tables;
}();

// The register without the inversions at both ends; eight bytes at a time.
uint32_t update(uint32_t crc, const std::byte* data, size_t size) {
  for (; size >= 8; data += 8, size -= 8) {
    uint64_t word;
    std::memcpy(&word, data, 8);
    word ^= crc;
    crc = 0;
    for (size_t i = 0; i < 8; ++i) crc ^= kTables[7 - i][word >> (8 * i) & 255];
  }
  for (; size > 0; ++data, --size)
    crc = crc >> 8 ^ kTables[0][(crc ^ static_cast<uint32_t>(*data)) & 255];
  return crc;
}

// a * b modulo the polynomial.
uint32_t multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = 1u << 31; bit != 0; bit >>= 1) {
    if (a & bit) product ^= b;
    b = b >> 1 ^ (b & 1 ? kPolynomial : 0);
  }
  return product;
}

#if defined(__x86_64__)
#define ANYMESH_PCLMUL __attribute__((target("pclmul,sse4.1")))

inline __m128i load(const std::byte* data) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(data));
}

// Moves a 128-bit remainder forward: its halves times x^(n+32) and x^(n-32), plus the next 16
// bytes.
ANYMESH_PCLMUL inline __m128i fold(__m128i x, __m128i powers, __m128i next) {
  const __m128i low = _mm_clmulepi64_si128(x, powers, 0x00);
  const __m128i high = _mm_clmulepi64_si128(x, powers, 0x11);
  return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

// After Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ" (Intel, 2009):
// four independent lanes, folded into one at the end; the last 16 bytes and the rest go through the
// table. REQUIRES: size >= 64.
ANYMESH_PCLMUL uint32_t update_folding(uint32_t crc, const std::byte* data, size_t size) {
  const __m128i by_512 =
      _mm_set_epi64x(0x1c6e41596, 0x154442bd4);  // x^(512-32), x^(512+32), reflected
  const __m128i by_128 = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);  // x^(128-32), x^(128+32)
  __m128i lane[4];
  for (int i = 0; i < 4; ++i) lane[i] = load(data + 16 * i);
  lane[0] = _mm_xor_si128(lane[0], _mm_cvtsi32_si128(static_cast<int>(crc)));
  for (data += 64, size -= 64; size >= 64; data += 64, size -= 64) {
    for (int i = 0; i < 4; ++i) lane[i] = fold(lane[i], by_512, load(data + 16 * i));
  }
  for (int i = 1; i < 4; ++i) lane[i] = fold(lane[i - 1], by_128, lane[i]);
  std::byte rest[16];
  _mm_storeu_si128(reinterpret_cast<__m128i*>(rest), lane[3]);
  return update(update(0, rest, sizeof rest), data, size);
}
#endif

}  // namespace

uint32_t crc32_portable(std::span<const std::byte> bytes, uint32_t crc) {
  return ~update(~crc, bytes.data(), bytes.size());
}

uint32_t crc32(std::span<const std::byte> bytes, uint32_t crc) {
#if defined(__x86_64__)
  static const bool has_pclmul =
      __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
  if (has_pclmul && bytes.size() >= 64) return ~update_folding(~crc, bytes.data(), bytes.size());
#endif
  return crc32_portable(bytes, crc);
}

uint32_t crc32_combine(uint32_t first, uint32_t second, uint64_t second_size) {
  // first * x^(8 * second_size): square and multiply over the bits of the size.
  uint32_t power = 1u << 23;  // x^8
  for (uint64_t n = second_size; n != 0; n >>= 1) {
    if (n & 1) first = multiply(power, first);
    power = multiply(power, power);
  }
  return first ^ second;
}

}  // namespace anymesh
