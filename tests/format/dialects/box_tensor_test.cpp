#include "framework/format/dialects/box_tensor.h"

#include <numeric>

#include "tests/support/fixtures.h"

namespace anymesh {
namespace {

constexpr int64_t kSizes[] = {3, 4, 5};

// The box of these offsets and shape, of a tensor whose elements are 0, 1, 2, ...
TensorBox box(Shape offsets, Shape shape) {
  std::vector<float> values;
  for (int64_t i = 0; i < shape[0]; ++i)
    for (int64_t j = 0; j < shape[1]; ++j)
      for (int64_t k = 0; k < shape[2]; ++k)
        values.push_back(static_cast<float>(
            ((offsets[0] + i) * kSizes[1] + offsets[1] + j) * kSizes[2] + offsets[2] + k));
  return {std::move(offsets), std::move(shape), bytes_of(values)};
}

TensorRecord joined_boxes(std::vector<TensorBox> boxes) {
  return tensor_of_boxes("w", DType::kFloat32, {3, 4, 5}, std::move(boxes));
}

TEST(BoxTensor, ReadsAnyRangeOfAnyBoxes) {
  std::vector<float> expected(60);
  std::iota(expected.begin(), expected.end(), 0.f);
  const std::vector<std::vector<TensorBox>> cuts = {
      {box({0, 0, 0}, {3, 4, 5})},
      {box({2, 0, 0}, {1, 4, 5}), box({0, 0, 0}, {2, 4, 5}), box({3, 0, 0}, {0, 4, 5})},
      {box({0, 1, 0}, {3, 3, 5}), box({0, 0, 0}, {3, 1, 5})},
      {box({0, 0, 0}, {3, 4, 2}), box({0, 0, 2}, {3, 4, 3})},
      {box({0, 0, 0}, {2, 4, 2}), box({0, 0, 2}, {3, 3, 3}), box({2, 0, 0}, {1, 3, 2}),
       box({0, 3, 2}, {2, 1, 3}), box({2, 3, 0}, {1, 1, 5})}};
  for (const auto& boxes : cuts) {
    const TensorRecord tensor = joined_boxes(boxes);
    for (size_t begin = 0; begin < 60; ++begin)
      for (size_t end = begin + 1; end <= 60; ++end) {
        std::vector<float> part(end - begin);
        tensor.bytes->read(4 * begin, std::as_writable_bytes(std::span(part)));
        EXPECT_TRUE(
            std::equal(part.begin(), part.end(), expected.begin() + static_cast<ptrdiff_t>(begin)));
      }
  }
  EXPECT_EQ(floats(tensor_of_boxes("s", DType::kFloat32, {}, {{{}, {}, bytes_of<float>({7})}})),
            std::vector<float>{7});
}

TEST(BoxTensor, RefusesWhatDoesNotCoverEachElementOnce) {
  const auto refusal = [](std::vector<TensorBox> boxes) {
    return message_of([&] { joined_boxes(std::move(boxes)); });
  };
  EXPECT_THAT(refusal({box({0, 0, 0}, {2, 4, 5})}), HasSubstr("have 40 elements of 60"));
  EXPECT_THAT(
      refusal({box({0, 0, 0}, {2, 4, 5}), box({0, 2, 0}, {2, 2, 5})}),
      HasSubstr("w, a tensor of [3, 4, 5]: its parts [2, 4, 5] at [0, 0, 0] and [2, 2, 5] at "
                "[0, 2, 0] overlap"));
  EXPECT_THAT(refusal({box({0, 0, 0}, {3, 4, 5}), box({0, 0, 0}, {1, 1, 1})}),
              HasSubstr("more elements"));
  EXPECT_THAT(refusal({box({1, 0, 0}, {3, 4, 5})}),
              HasSubstr("[3, 4, 5] at [1, 0, 0] lies outside"));
  EXPECT_THAT(refusal({{{0, 0}, {12, 5}, nullptr}}), HasSubstr("has other dims"));
}

}  // namespace
}  // namespace anymesh
