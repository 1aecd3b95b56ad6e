#include "framework/format/sharded/tensor_views.h"

#include <cmath>

#include "tests/support/fixtures.h"

namespace anymesh {
namespace {

TEST(Float32, ConvertsEveryDtypeAsTorchDoes) {
  const auto convert = [](DType dtype, auto values) {
    const TensorRecord tensor{
        dtype, {static_cast<int64_t>(values.size())}, false, bytes_of(values)};
    return floats(as_float32(tensor));
  };
  using Half = std::vector<uint16_t>;
  EXPECT_EQ(convert(DType::kBFloat16, Half{0x3F80, 0xC000, 0x0001}),
            (std::vector<float>{1, -2, 0x1p-133f}));
  EXPECT_EQ(convert(DType::kFloat16, Half{0x3C00, 0xC000, 0x7BFF, 0x0400, 0x0001, 0x83FF, 0x7C00}),
            (std::vector<float>{1, -2, 65504, 0x1p-14f, 0x1p-24f, -1023 * 0x1p-24f, INFINITY}));
  EXPECT_EQ(convert(DType::kFloat64, std::vector<double>{0.1}), (std::vector<float>{0.1f}));
  EXPECT_EQ(convert(DType::kInt64, std::vector<int64_t>{-5}), (std::vector<float>{-5}));
  EXPECT_EQ(convert(DType::kInt8, std::vector<int8_t>{-5}), (std::vector<float>{-5}));
  EXPECT_EQ(convert(DType::kUInt8, std::vector<uint8_t>{251}), (std::vector<float>{251}));
}

TEST(Averaged, IsTheMean) {
  const BytesPtr mean =
      averaged({bytes_of(std::vector<float>{1, 2}), bytes_of(std::vector<float>{3, 6})});
  EXPECT_EQ(floats(*mean), (std::vector<float>{2, 4}));
}

}  // namespace
}  // namespace anymesh
