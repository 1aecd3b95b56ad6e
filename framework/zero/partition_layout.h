#pragma once

#include <cstdint>
#include <vector>

#include "framework/format/layout.h"

namespace anymesh {

// Maps the elements of a parameter group to the partitions of the dp ranks, at any stage. Stages 0
// to 2 lay the parameters end to end and cut the whole; stage 3 cuts each parameter separately.
class PartitionLayout {
 public:
  PartitionLayout(const std::vector<int64_t>& numels, int ranks, bool per_parameter)
      : flat_(numels, ranks), numels_(numels), ranks_(ranks), per_parameter_(per_parameter) {}

  int ranks() const { return ranks_; }
  int64_t numel(size_t param) const { return numels_[param]; }

  // Elements of each rank's partition, padding included.
  int64_t partition_numel() const {
    if (!per_parameter_) return flat_.partition_numel();
    int64_t sum = 0;
    for (const int64_t n : numels_) sum += zero3_part_numel(n, ranks_);
    return sum;
  }

  // The non-empty fragments of a rank's partition, in order.
  std::vector<Fragment> fragments(int rank) const {
    if (!per_parameter_) return flat_.fragments(rank);
    std::vector<Fragment> out;
    int64_t start = 0;
    for (size_t i = 0; i < numels_.size(); ++i) {
      const auto [begin, held] = zero3_part(numels_[i], rank, ranks_);
      if (held > 0) out.push_back({i, begin, start, held});
      start += zero3_part_numel(numels_[i], ranks_);
    }
    return out;
  }

  // DeepSpeed's numbers for the files. Stages 0 to 2 only.
  const FlatGroup& flat() const { return flat_; }

 private:
  FlatGroup flat_;
  std::vector<int64_t> numels_;
  int ranks_;
  bool per_parameter_;
};

}  // namespace anymesh
