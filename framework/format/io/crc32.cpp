#include "framework/format/io/crc32.h"

#include <libdeflate.h>

namespace anymesh {
namespace {

constexpr uint32_t kPolynomial = 0xEDB88320;  // reflected: bit 31 is x^0

// Returns a * b modulo the polynomial.
uint32_t multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = 1u << 31; bit != 0; bit >>= 1) {
    if (a & bit) product ^= b;
    b = b >> 1 ^ (b & 1 ? kPolynomial : 0);
  }
  return product;
}

// Returns x^n modulo the polynomial.
uint32_t power_of_x(uint64_t n) {
  uint32_t result = 1u << 31, square = 1u << 30;
  for (; n != 0; n >>= 1) {
    if (n & 1) result = multiply(square, result);
    square = multiply(square, square);
  }
  return result;
}

}  // namespace

uint32_t crc32(std::span<const std::byte> bytes, uint32_t crc) {
  return bytes.empty() ? crc : libdeflate_crc32(crc, bytes.data(), bytes.size());
}

uint32_t crc32_combine(uint32_t first, uint32_t second, uint64_t second_size) {
  return multiply(power_of_x(8 * second_size), first) ^ second;
}

}  // namespace anymesh
