#include "framework/format/io/crc32.h"

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

// Updates the CRC register eight bytes at a time, without the inversions at both ends.
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

// Returns a * b modulo the polynomial.
constexpr uint32_t multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = 1u << 31; bit != 0; bit >>= 1) {
    if (a & bit) product ^= b;
    b = b >> 1 ^ (b & 1 ? kPolynomial : 0);
  }
  return product;
}

// Returns x^n modulo the polynomial.
constexpr uint32_t power_of_x(uint64_t n) {
  uint32_t result = 1u << 31, square = 1u << 30;
  for (; n != 0; n >>= 1) {
    if (n & 1) result = multiply(square, result);
    square = multiply(square, square);
  }
  return result;
}

#if defined(__x86_64__)
// After Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ" (Intel, 2009).
// Four independent lanes are folded into one at the end. That lane's bytes and the rest of the text
// go through the table. To move a 128-bit remainder n bits forward, its halves are multiplied by
// x^(n+32) and x^(n-32).
#define ANYMESH_PCLMUL __attribute__((target("pclmul,sse4.1")))
#define ANYMESH_VPCLMUL __attribute__((target("avx512f,vpclmulqdq")))

// The product of two reflected polynomials is one bit short.
constexpr std::array<long long, 2> fold_by(uint64_t bits) {
  return {int64_t{power_of_x(bits - 32)} << 1, int64_t{power_of_x(bits + 32)} << 1};
}
constexpr auto kFold128 = fold_by(128), kFold512 = fold_by(512), kFold2048 = fold_by(2048);
static_assert(kFold512[1] == 0x154442bd4 && kFold128[0] == 0x0ccaa009e);  // as in the paper

inline __m128i load(const std::byte* data) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(data));
}

ANYMESH_PCLMUL inline __m128i fold(__m128i x, __m128i powers, __m128i next) {
  const __m128i low = _mm_clmulepi64_si128(x, powers, 0x00);
  const __m128i high = _mm_clmulepi64_si128(x, powers, 0x11);
  return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

// REQUIRES: size >= 64.
ANYMESH_PCLMUL uint32_t update_folding(uint32_t crc, const std::byte* data, size_t size) {
  const __m128i by_512 = _mm_set_epi64x(kFold512[0], kFold512[1]);
  const __m128i by_128 = _mm_set_epi64x(kFold128[0], kFold128[1]);
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

ANYMESH_VPCLMUL inline __m512i fold_wide(__m512i x, __m512i powers, __m512i next) {
  const __m512i low = _mm512_clmulepi64_epi128(x, powers, 0x00);
  const __m512i high = _mm512_clmulepi64_epi128(x, powers, 0x11);
  return _mm512_ternarylogic_epi64(low, high, next, 0x96);  // a ^ b ^ c
}

// update_folding() with lanes four times as wide. REQUIRES: size >= 256.
ANYMESH_VPCLMUL uint32_t update_folding_wide(uint32_t crc, const std::byte* data, size_t size) {
  const __m512i by_2048 = _mm512_set4_epi64(kFold2048[0], kFold2048[1], kFold2048[0], kFold2048[1]);
  const __m512i by_512 = _mm512_set4_epi64(kFold512[0], kFold512[1], kFold512[0], kFold512[1]);
  __m512i lane[4];
  for (int i = 0; i < 4; ++i) lane[i] = _mm512_loadu_si512(data + 64 * i);
  const __m128i start = _mm_cvtsi32_si128(static_cast<int>(crc));
  lane[0] = _mm512_xor_si512(lane[0], _mm512_zextsi128_si512(start));
  for (data += 256, size -= 256; size >= 256; data += 256, size -= 256) {
    for (int i = 0; i < 4; ++i)
      lane[i] = fold_wide(lane[i], by_2048, _mm512_loadu_si512(data + 64 * i));
  }
  for (int i = 1; i < 4; ++i) lane[i] = fold_wide(lane[i - 1], by_512, lane[i]);
  std::byte rest[64];
  _mm512_storeu_si512(rest, lane[3]);
  crc = update_folding(0, rest, sizeof rest);
  return size >= 64 ? update_folding(crc, data, size) : update(crc, data, size);
}
#endif

}  // namespace

uint32_t crc32_portable(std::span<const std::byte> bytes, uint32_t crc) {
  return ~update(~crc, bytes.data(), bytes.size());
}

uint32_t crc32(std::span<const std::byte> bytes, uint32_t crc) {
#if defined(__x86_64__)
  static const bool narrow = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
  static const bool wide =
      narrow && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq");
  if (wide && bytes.size() >= 256) return ~update_folding_wide(~crc, bytes.data(), bytes.size());
  if (narrow && bytes.size() >= 64) return ~update_folding(~crc, bytes.data(), bytes.size());
#endif
  return crc32_portable(bytes, crc);
}

uint32_t crc32_combine(uint32_t first, uint32_t second, uint64_t second_size) {
  return multiply(power_of_x(8 * second_size), first) ^ second;
}

}  // namespace anymesh
