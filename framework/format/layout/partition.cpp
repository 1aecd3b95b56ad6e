#include "framework/format/layout/partition.h"

#include <algorithm>
#include <stdexcept>

namespace anymesh {
namespace {

constexpr int64_t kAlignmentPerRank = 2;  // DeepSpeed's nccl_start_alignment_factor

}  // namespace

FlatGroup::FlatGroup(std::span<const int64_t> param_numels, int dp_size,
                     std::span<const int64_t> gaps)
    : numels_(param_numels.begin(), param_numels.end()) {
  if (dp_size < 1)
    throw std::invalid_argument("a group cannot be cut among " + std::to_string(dp_size) +
                                " ranks");
  if (!gaps.empty() && gaps.size() != numels_.size()) {
    throw std::invalid_argument("a group of " + std::to_string(numels_.size()) +
                                " parameters has " + std::to_string(gaps.size()) +
                                " alignment paddings");
  }
  const auto advance = [this](int64_t count) {
    if (count < 0 || __builtin_add_overflow(numel_, count, &numel_) || numel_ > INT64_MAX / 4) {
      throw std::invalid_argument("a group of parameters is too large");
    }
  };
  for (size_t i = 0; i < numels_.size(); ++i) {
    offsets_.push_back(numel_);
    advance(numels_[i]);
    if (!gaps.empty()) advance(gaps[i]);
  }
  const int64_t alignment = kAlignmentPerRank * dp_size;
  partition_numel_ = (numel_ + alignment - 1) / alignment * kAlignmentPerRank;
}

std::vector<size_t> round_robin_order(size_t count, int dp_size) {
  std::vector<size_t> order;
  const auto step = static_cast<size_t>(dp_size);
  for (size_t first = 0; first < std::min(step, count); ++first)
    for (size_t i = first; i < count; i += step) order.push_back(i);
  return order;
}

int64_t FlatGroup::padding(int dp_rank) const {
  return std::clamp<int64_t>((dp_rank + 1) * partition_numel_ - numel_, 0, partition_numel_);
}

std::vector<Fragment> FlatGroup::fragments(int dp_rank) const {
  const int64_t begin = dp_rank * partition_numel_, end = begin + partition_numel_;
  std::vector<Fragment> result;
  for (size_t i = 0; i < numels_.size(); ++i) {
    const int64_t first = std::max(begin, offsets_[i]),
                  last = std::min(end, offsets_[i] + numels_[i]);
    if (first < last) result.push_back({i, first - offsets_[i], first - begin, last - first});
  }
  return result;
}

}  // namespace anymesh
