#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace anymesh {

// How ZeRO lays parameters out in flat buffers and cuts those among dp ranks. Arithmetic alone; all
// in elements.
//
// Stages 1 and 2: the parameters of a group one after the other, zeros up to a multiple of 2 * dp,
// then dp equal partitions. N = 147, dp 2: flat 148, partition 74, rank 1 has 1 of padding. A
// parameter may span partitions:
//   rank 0: {param 0: 66 at 0}, {param 1: its first 8 at 66}
//   rank 1: {param 1: its last 22 at 0}, ...
// Stage 3: every parameter by itself, ceil(n / dp) for each rank.
struct Fragment {
  size_t param = 0;             // index in the group
  int64_t param_start = 0;      // where the fragment lies in the parameter
  int64_t partition_start = 0;  // ... and in the rank's partition
  int64_t numel = 0;
  bool operator==(const Fragment&) const = default;
};

class FlatGroup {
 public:
  // `gaps`: zeros after each parameter (DeepSpeed's parameter_alignment); empty = none.
  FlatGroup(std::span<const int64_t> param_numels, int dp_size, std::span<const int64_t> gaps = {});

  int64_t numel() const { return numel_; }  // without the final padding
  int64_t partition_numel() const { return partition_numel_; }
  int64_t param_offset(size_t param) const { return offsets_[param]; }  // in the flat buffer
  // How much of the rank's partition lies past the end: of several ranks, where the group is small.
  int64_t padding(int dp_rank) const;
  std::vector<Fragment> fragments(int dp_rank) const;

 private:
  int64_t numel_ = 0, partition_numel_ = 0;
  std::vector<int64_t> offsets_, numels_;
};

// Stage 3: the part of a parameter of `numel` elements that each rank holds, the last ones partly
// past its end.
inline int64_t zero3_part_numel(int64_t numel, int dp_size) {
  return (numel + dp_size - 1) / dp_size;
}

// Which elements of the parameter those are.
struct ElementRange {
  int64_t begin = 0, count = 0;
};
inline ElementRange zero3_part(int64_t numel, int dp_rank, int dp_size) {
  const int64_t part = zero3_part_numel(numel, dp_size), begin = std::min(numel, dp_rank * part);
  return {begin, std::min(numel, begin + part) - begin};
}

}  // namespace anymesh
