#include "framework/format/torch_file/elements.h"

#include <cmath>
#include <limits>

#include "framework/format/sharded/tensor_views.h"
#include "framework/format/torch_file/safetensors.h"
#include "tests/support/fixtures.h"

namespace anymesh {
namespace {

template <typename T>
TensorRecord tensor_of(DType dtype, const std::vector<T>& raw) {
  const auto count = static_cast<int64_t>(raw.size() * sizeof(T) / element_size(dtype));
  return {dtype, {count}, false, bytes_of(raw)};
}

TEST(Elements, Float8AsTorchReadsIt) {
  const auto read = [](DType dtype, const std::vector<uint8_t>& raw) {
    return floats(as_float32(tensor_of(dtype, raw)));
  };
  using F = std::vector<float>;
  EXPECT_EQ(read(DType::kFloat8E4M3fn, {0x38, 0x7E, 0x01, 0xB9}), (F{1, 448, 0x1p-9f, -1.125f}));
  EXPECT_EQ(read(DType::kFloat8E5M2, {0x3C, 0x7B, 0x01, 0x7C}), (F{1, 57344, 0x1p-16f, INFINITY}));
  EXPECT_EQ(read(DType::kFloat8E4M3fnuz, {0x40, 0x7F, 0x01, 0xC1}), (F{1, 240, 0x1p-10f, -1.125f}));
  EXPECT_EQ(read(DType::kFloat8E5M2fnuz, {0x40, 0x7F, 0x01}), (F{1, 57344, 0x1p-17f}));
  EXPECT_EQ(read(DType::kFloat8E8M0fnu, {0x7F, 0x80, 0x00}), (F{1, 2, 0x1p-127f}));
  EXPECT_TRUE(std::signbit(read(DType::kFloat8E4M3fn, {0x80})[0]));
  for (const auto& [dtype, nan] : {std::pair{DType::kFloat8E4M3fn, 0xFF},
                                   {DType::kFloat8E5M2, 0x7D},
                                   {DType::kFloat8E4M3fnuz, 0x80},
                                   {DType::kFloat8E5M2fnuz, 0x80},
                                   {DType::kFloat8E8M0fnu, 0xFF}})
    EXPECT_TRUE(std::isnan(read(dtype, {static_cast<uint8_t>(nan)})[0])) << dtype_name(dtype);
}

// Each number of 16 bits stays itself. A float halfway to the next one goes to the even one, and
// its neighbours to either side.
TEST(Elements, RoundsToNearestEven) {
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    const uint16_t infinity = dtype == DType::kFloat16 ? 0x7C00 : 0x7F80;
    const auto rounded = [&](float value) {
      uint16_t bits;
      from_floats(dtype, std::span(&value, 1), std::as_writable_bytes(std::span(&bits, 1)));
      return bits;
    };
    std::vector<uint16_t> all(infinity);
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
    std::vector<float> values(all.size());
    to_floats(dtype, std::as_bytes(std::span(all)), values);
    for (uint16_t bits = 0; bits < infinity; ++bits) {
      const float value = values[bits];
      ASSERT_EQ(rounded(value), bits);
      ASSERT_EQ(rounded(-value), bits | 0x8000);
      if (bits == 0) continue;
      const float half = value / 2 + values[bits - 1] / 2;
      if (half + half != value + values[bits - 1]) continue;  // not a float: below the smallest
      ASSERT_EQ(rounded(half), bits & 1 ? bits - 1 : bits) << bits;
      ASSERT_EQ(rounded(std::nextafter(half, INFINITY)), bits);
      ASSERT_EQ(rounded(std::nextafter(half, 0.0f)), bits - 1);
    }
    EXPECT_EQ(rounded(INFINITY), infinity);
    EXPECT_EQ(rounded(-INFINITY), infinity | 0x8000);
    EXPECT_GT(rounded(std::nanf("1")), infinity);
    EXPECT_EQ(rounded(std::numeric_limits<float>::max()), infinity);
  }
  EXPECT_EQ(to_half(65519), 0x7BFF);
  EXPECT_EQ(to_half(65520), 0x7C00);  // halfway to 65536
  EXPECT_EQ(to_half(0x1p-25f), 0);
  EXPECT_EQ(to_half(0x1.8p-25f), 1);
}

TEST(Elements, UnsignedNumbersAndSteps) {
  EXPECT_EQ(Value(tensor_of(DType::kUInt16, std::vector<uint16_t>{65535})).as_int(), 65535);
  EXPECT_EQ(Value(tensor_of(DType::kUInt32, std::vector<uint32_t>{UINT32_MAX})).as_int(),
            int64_t{UINT32_MAX});
  EXPECT_EQ(Value(tensor_of(DType::kUInt64, std::vector<uint64_t>{1ULL << 63})).as_double(),
            0x1p63);
  EXPECT_EQ(Value(tensor_of(DType::kBFloat16, std::vector<uint16_t>{0x4040})).as_int(), 3);
}

TEST(Elements, ComplexNumbersAreNotReal) {
  const TensorRecord a = tensor_of(DType::kComplex64, std::vector<float>{1, 2, 3, 4}),
                     b = tensor_of(DType::kComplex64, std::vector<float>{1, 2, 6, 8});
  EXPECT_EQ(compare_tensors(a, b).text(),
            "differs in 1 of 2 elements, at most by 5.000e+00 at element 1");
  EXPECT_THROW(as_float32(a), Unreadable);
  EXPECT_THROW(Value(tensor_of(DType::kComplex64, std::vector<float>{1, 2})).as_double(),
               DamagedFile);
}

TEST(Elements, DtypesAreComparedByValueWhereThatIsExact) {
  const TensorRecord half = tensor_of(DType::kBFloat16, std::vector<uint16_t>{0x3F80, 0, 0x7FC0});
  EXPECT_EQ(compare_tensors(half, float_tensor({3}, {1, 0, NAN})).count, 0);
  EXPECT_EQ(compare_tensors(float_tensor({3}, {1, 0, NAN}), half).count, 0);
  EXPECT_EQ(compare_tensors(half, float_tensor({3}, {1.5, -0.0f, 2})).text(),
            "differs in 3 of 3 elements, at most by nan at element 2");
  EXPECT_TRUE(is_comparable(DType::kInt64, DType::kInt64));
  EXPECT_FALSE(is_comparable(DType::kInt64, DType::kFloat32));  // 2^53 + 1
  EXPECT_FALSE(is_comparable(DType::kComplex64, DType::kFloat32));
}

class Safetensors : public TempFolder {};

TEST_F(Safetensors, HaveTheSameDtypes) {
  NamedTensors tensors;
  for (const DType dtype :
       {DType::kFloat8E4M3fn, DType::kFloat8E5M2, DType::kFloat8E4M3fnuz, DType::kFloat8E5M2fnuz,
        DType::kFloat8E8M0fnu, DType::kUInt64, DType::kUInt32, DType::kUInt16, DType::kComplex64})
    tensors.emplace_back(dtype_name(dtype), tensor_of(dtype, std::vector<uint64_t>{1, 2}));
  write_safetensors(folder_ / "m.safetensors", tensors);
  for (const auto& [name, tensor] : read_safetensors(folder_ / "m.safetensors"))
    EXPECT_EQ(
        Value(tensor),
        Value(
            std::ranges::find(tensors, name, [](const auto& each) { return each.first; })->second))
        << name;
  const TensorRecord wide = tensor_of(DType::kComplex128, std::vector<double>{1, 2});
  EXPECT_REFUSES(write_safetensors(folder_ / "w.safetensors", {{"w", wide}}),
                 "w is of complex128, which safetensors do not have");
  std::string text = read_file(folder_ / "m.safetensors");
  text.replace(text.find("\"U16\""), 5, "\"F4\" ");
  write_file(folder_ / "m.safetensors", text);
  EXPECT_THROW(read_safetensors(folder_ / "m.safetensors"), Unreadable);
}

}  // namespace
}  // namespace anymesh
