#include <set>

#include "framework/zero/sum_reductions.h"
#include "tests/support/ranks.h"

namespace anymesh {
namespace {

constexpr int64_t kMost = 4;  // elements at once

// Six parameters of three elements, one a unit, and the sums that a rank has of them.
ParamGroup group_of(const CommPtr& dp) {
  ParamGroup group{
      .replicas = dp, .partitions = dp, .layout = {std::vector<int64_t>(6, 3), dp->size(), false}};
  for (int unit = 0; unit < 6; ++unit)
    group.params.push_back({.name = std::to_string(unit), .units = {unit}});
  group.sums =
      at::arange(group.layout.partition_numel() * dp->size(), torch::kFloat) * (dp->rank() + 1);
  return group;
}

// Reduces a step's sums, in which this rank completes `completed` in the backward and the rest at
// its end, and expects the sums over the ranks.
void expect_sums(bool scatters, const std::vector<size_t>& completed) {
  const CommPtr dp = test_world();
  SumReductions reductions;
  ParamGroup group = group_of(dp);
  const torch::Tensor all = group.sums / (dp->rank() + 1) * (dp->size() * (dp->size() + 1) / 2);
  const std::vector<SumReductions::Part*> parts = reductions.add(group, scatters, {}, kMost);
  EXPECT_EQ(std::set(parts.begin(), parts.end()).size(), 3);
  for (const size_t param : completed) reductions.completed(*parts[param]);
  reductions.finish();
  const int64_t partition = group.layout.partition_numel();
  const auto mine = [&](const torch::Tensor& sums) {
    return scatters ? sums.narrow(0, dp->rank() * partition, partition) : sums;
  };
  EXPECT_TRUE(torch::equal(mine(group.sums), mine(all))) << group.sums;
}

RANKS_TEST(SumReductions, AddPartByPart) {
  for (const bool scatters : {false, true}) {
    expect_sums(scatters, {5, 4, 3, 2, 1, 0});
    expect_sums(scatters, {});
  }
}

// Ranks that complete different parameters still reduce the same parts one after the other.
RANKS_TEST(SumReductions, StartInOneOrder) {
  const bool odd = test_world()->rank() % 2 == 1;
  for (const bool scatters : {false, true})
    expect_sums(scatters, odd ? std::vector<size_t>{0, 1, 2, 3} : std::vector<size_t>{5, 4, 1, 0});
}

RANKS_TEST(SumReductions, ASecondGradientIsAnError) {
  SumReductions reductions;
  const ParamGroup group = group_of(test_world()->split(test_world()->rank(), 0));
  SumReductions::Part& last = *reductions.add(group, false, {}, kMost).back();
  reductions.completed(last);
  reductions.completed(last);
  EXPECT_THROW(reductions.completed(last), c10::Error);
}

}  // namespace
}  // namespace anymesh
