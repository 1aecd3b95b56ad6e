#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace anymesh {

// How ZeRO lays parameters out in flat buffers and cuts the buffers among dp ranks. This is pure
// arithmetic, in elements.
//
// Stages 1 and 2 lay a group's parameters out one after the other, append zeros up to a multiple of
// 2 * dp, and cut the buffer into dp equal partitions. For N = 147 and dp 2, the flat buffer has
// 148 elements, each partition 74, and rank 1 has 1 of padding. A parameter may span partitions:
//   rank 0: {param 0: 66 at 0}, {param 1: its first 8 at 66}
//   rank 1: {param 1: its last 22 at 0}, ...
// Stage 3 cuts every parameter by itself, ceil(n / dp) for each rank.
struct Fragment {
  size_t param = 0;             // index in the group
  int64_t param_start = 0;      // the fragment's place in the parameter
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
  // Returns how many elements of the rank's partition are padding. Several ranks have padding if
  // the group is small.
  int64_t padding(int dp_rank) const;
  std::vector<Fragment> fragments(int dp_rank) const;

 private:
  int64_t numel_ = 0, partition_numel_ = 0;
  std::vector<int64_t> offsets_, numels_;
};

// Returns the order in which stages 1 and 2 lay out a group with DeepSpeed's round_robin_gradients,
// as places in the group: 0, dp, 2 dp, ..., 1, dp + 1, ...
std::vector<size_t> round_robin_order(size_t count, int dp_size);

// Stage 3: the size of each rank's part of a parameter with `numel` elements. The last parts may
// reach past its end.
inline int64_t zero3_part_numel(int64_t numel, int dp_size) {
  return (numel + dp_size - 1) / dp_size;
}

// Returns the elements of the parameter in the rank's part.
struct ElementRange {
  int64_t begin = 0, count = 0;
};
inline ElementRange zero3_part(int64_t numel, int dp_rank, int dp_size) {
  const int64_t part = zero3_part_numel(numel, dp_size), begin = std::min(numel, dp_rank * part);
  return {begin, std::min(numel, begin + part) - begin};
}

// The layers [begin, end) of a stage. They are divided as evenly as possible; if there is a
// remainder, the first stages take one more.
struct LayerRange {
  int begin = 0, end = 0;
};
inline LayerRange layers_of_stage(int num_layers, int num_stages, int stage) {
  const int each = num_layers / num_stages, more = num_layers % num_stages;
  const int begin = stage * each + std::min(stage, more);
  return {begin, begin + each + (stage < more ? 1 : 0)};
}

}  // namespace anymesh
