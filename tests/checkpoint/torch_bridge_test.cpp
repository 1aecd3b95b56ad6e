#include "framework/checkpoint/torch_bridge.h"

#include <gtest/gtest.h>

namespace anymesh {
namespace {

std::vector<StateTensor> pieces_of(const torch::Tensor& whole,
                                   const std::shared_ptr<SwapFile>& swap) {
  std::vector<StateTensor> pieces;
  int64_t begin = 0;
  for (const int64_t numel : {3, 0, 7, 10}) {
    const StateTensor piece = StateTensor::zeros(numel, torch::kFloat, swap);
    piece.fill([&](int64_t at, const torch::Tensor& block) {
      block.copy_(whole.narrow(0, begin + at, block.numel()));
    });
    pieces.push_back(piece);
    begin += numel;
  }
  return pieces;
}

TEST(TensorIo, ReadsAnyRangeAcrossPiecesInMemoryAndOnDisk) {
  const torch::Tensor whole = torch::arange(20, torch::kFloat);
  for (const auto& swap :
       {std::shared_ptr<SwapFile>(), std::make_shared<SwapFile>(testing::TempDir())}) {
    const TensorRecord record = record_of(pieces_of(whole, swap), torch::kFloat);
    EXPECT_EQ(record.shape, std::vector<int64_t>{20});
    ASSERT_EQ(record.bytes->size(), 80u);
    for (int64_t begin = 0; begin <= 20; ++begin) {
      for (int64_t end = begin; end <= 20; ++end) {
        torch::Tensor out = torch::empty({end - begin});
        read_elements(record, begin, out, "pieces");
        EXPECT_TRUE(torch::equal(out, whole.narrow(0, begin, end - begin)));
      }
    }
    std::vector<std::byte> bytes(8);
    EXPECT_THROW(record.bytes->read(76, bytes), std::runtime_error);
    EXPECT_THROW(record.bytes->read(UINT64_MAX, bytes), std::runtime_error);
  }
}

TEST(TensorIo, ReadsIntoStateOnDiskInItsDtype) {
  const TensorRecord record = record_of(torch::arange(24, torch::kFloat).view({4, 6}));
  EXPECT_EQ(record.shape, (std::vector<int64_t>{4, 6}));
  const StateTensor state =
      StateTensor::zeros(10, torch::kBFloat16, std::make_shared<SwapFile>(testing::TempDir()));
  read_elements(record, 5, state, "state");
  torch::Tensor out = torch::empty({10}, torch::kBFloat16);
  read_elements(record_of(state), 0, out, "state");
  EXPECT_TRUE(torch::equal(out, torch::arange(5, 15, torch::kBFloat16)));
}

}  // namespace
}  // namespace anymesh
