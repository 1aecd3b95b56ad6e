#include "framework/format/torch_file/elements.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

namespace anymesh {
namespace {

// Converts IEEE 754 half precision to single: exponent and mantissa move up, subnormals are
// renormalised.
float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t exponent = half >> 10 & 31, mantissa = half & 0x3FF;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000 | mantissa << 13);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return sign ? -magnitude : magnitude;
}

float bfloat16_to_float(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// Converts eight bits of sign, exponent and mantissa. The formats have no infinities; `is_nan` says
// whether the bits are NaN (arXiv:2209.05433, and arXiv:2206.02915 for the fnuz kinds, which lack a
// negative zero).
template <int kMantissa, int kBias>
float float8_to_float(uint8_t bits, bool is_nan) {
  if (is_nan) return std::numeric_limits<float>::quiet_NaN();
  const int exponent = (bits & 0x7F) >> kMantissa, mantissa = bits & ((1 << kMantissa) - 1);
  const int significand = exponent == 0 ? mantissa : mantissa + (1 << kMantissa);
  const float magnitude =
      std::ldexp(static_cast<float>(significand), std::max(exponent, 1) - kBias - kMantissa);
  return bits & 0x80 ? -magnitude : magnitude;
}

float e4m3fn_to_float(uint8_t bits) { return float8_to_float<3, 7>(bits, (bits & 0x7F) == 0x7F); }
float e4m3fnuz_to_float(uint8_t bits) { return float8_to_float<3, 8>(bits, bits == 0x80); }
float e5m2fnuz_to_float(uint8_t bits) { return float8_to_float<2, 16>(bits, bits == 0x80); }
// e5m2 is the upper byte of a half-precision number.
float e5m2_to_float(uint8_t bits) { return half_to_float(static_cast<uint16_t>(bits << 8)); }
// e8m0fnu has an exponent only.
float e8m0fnu_to_float(uint8_t bits) {
  return bits == 0xFF ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0f, bits - 127);
}

template <typename T>
T same(T value) {
  return value;
}

// Converts elements of type T by `number_of`.
template <typename To, typename T, auto number_of>
void convert_as(std::span<const std::byte> from, std::span<To> to) {
  for (size_t i = 0; i < to.size(); ++i) {
    T value;
    std::memcpy(&value, from.data() + i * sizeof(T), sizeof(T));
    to[i] = static_cast<To>(number_of(value));
  }
}

template <typename To>
void convert(DType dtype, std::span<const std::byte> from, std::span<To> to) {
  constexpr void (*kConvert[])(std::span<const std::byte>, std::span<To>) = {
      // by DType
      convert_as<To, double, same<double>>,
      convert_as<To, float, same<float>>,
      convert_as<To, uint16_t, half_to_float>,
      convert_as<To, uint16_t, bfloat16_to_float>,
      convert_as<To, uint8_t, e4m3fn_to_float>,
      convert_as<To, uint8_t, e5m2_to_float>,
      convert_as<To, uint8_t, e4m3fnuz_to_float>,
      convert_as<To, uint8_t, e5m2fnuz_to_float>,
      convert_as<To, uint8_t, e8m0fnu_to_float>,
      nullptr,  // complex numbers
      nullptr,
      nullptr,
      convert_as<To, int64_t, same<int64_t>>,
      convert_as<To, int32_t, same<int32_t>>,
      convert_as<To, int16_t, same<int16_t>>,
      convert_as<To, int8_t, same<int8_t>>,
      convert_as<To, uint64_t, same<uint64_t>>,
      convert_as<To, uint32_t, same<uint32_t>>,
      convert_as<To, uint16_t, same<uint16_t>>,
      convert_as<To, uint8_t, same<uint8_t>>,
      convert_as<To, uint8_t, same<uint8_t>>};
  if (is_complex(dtype))
    throw std::logic_error(std::string(dtype_name(dtype)) + " numbers are not real");
  kConvert[static_cast<size_t>(dtype)](from, to);
}

}  // namespace

void to_floats(DType dtype, std::span<const std::byte> from, std::span<float> to) {
  convert(dtype, from, to);
}

void to_doubles(DType dtype, std::span<const std::byte> from, std::span<double> to) {
  convert(dtype, from, to);
}

uint16_t to_bfloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = bits + 0x7FFF + (bits >> 16 & 1);
  return static_cast<uint16_t>(std::isnan(value) ? 0x7FC0 : rounded >> 16);
}

uint16_t to_half(float value) {
  const uint32_t sign = std::bit_cast<uint32_t>(value) >> 16 & 0x8000;
  const float size = std::abs(value);
  if (std::isnan(value)) return 0x7E00;
  if (size >= 65520) return static_cast<uint16_t>(sign | 0x7C00);
  const auto bits = std::bit_cast<uint32_t>(size);
  const uint32_t half = size < 0x1p-14F ? static_cast<uint32_t>(std::nearbyint(size * 0x1p24F))
                                        : (bits + 0xFFF + (bits >> 13 & 1) - (112U << 23)) >> 13;
  return static_cast<uint16_t>(sign | half);
}

void from_floats(DType dtype, std::span<const float> from, std::span<std::byte> to) {
  if (dtype == DType::kFloat32) {
    std::memcpy(to.data(), from.data(), from.size_bytes());
    return;
  }
  if (dtype != DType::kFloat16 && dtype != DType::kBFloat16)
    throw std::logic_error("floats are not rounded to " + std::string(dtype_name(dtype)));
  for (size_t i = 0; i < from.size(); ++i) {
    const uint16_t bits = dtype == DType::kFloat16 ? to_half(from[i]) : to_bfloat16(from[i]);
    std::memcpy(to.data() + i * sizeof bits, &bits, sizeof bits);
  }
}

bool fits_double(DType dtype) {
  return !is_complex(dtype) && dtype != DType::kInt64 && dtype != DType::kUInt64;
}

}  // namespace anymesh
