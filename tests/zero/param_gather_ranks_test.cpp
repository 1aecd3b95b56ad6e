#include "framework/zero/param_gather.h"
#include "tests/support/ranks.h"

namespace anymesh {
namespace {

// Four parameters of ten elements, one a unit. Element i of the group has the value i on the rank
// that owns it, and 0 elsewhere.
struct Owned {
  explicit Owned(const CommPtr& dp)
      : group{.replicas = dp,
              .partitions = dp,
              .layout = {std::vector<int64_t>(4, 10), dp->size(), false}} {
    for (int unit = 0; unit < 4; ++unit)
      group.params.push_back({.units = {unit}, .tensor = at::zeros({10}, torch::kFloat)});
    set(1);
  }
  void set(float scale) {
    for (const Fragment& f : group.layout.fragments(group.partitions->rank()))
      group.params[f.param]
          .tensor.narrow(0, f.param_start, f.numel)
          .copy_(expected(static_cast<int>(f.param)).narrow(0, f.param_start, f.numel) * scale);
  }
  static torch::Tensor expected(int unit) { return at::arange(10, torch::kFloat) + 10 * unit; }
  bool is_complete(int unit, float scale = 1) const {
    return torch::equal(group.params[static_cast<size_t>(unit)].tensor, expected(unit) * scale);
  }
  ParamGroup group;
};

RANKS_TEST(ParamGather, AUnitWaitsForItsWindows) {
  for (const int64_t part : {1, 3, 100}) {
    Owned owned(test_world());
    ParamGather gather(owned.group, /*beside=*/true, part);
    for (const float scale : {2.f, 3.f}) {
      owned.set(scale);
      gather.start();
      for (int unit = 0; unit < 4; ++unit) {
        gather.before(unit);
        EXPECT_TRUE(owned.is_complete(unit, scale)) << unit;
      }
    }
  }
}

// Two of four ranks have half of the layers each: unit 0 needs half of the windows.
RANKS_TEST(ParamGather, LaterUnitsAreNotWaitedFor) {
  const CommPtr pair = test_world()->split(test_world()->rank() / 2, test_world()->rank());
  Owned owned(pair);
  ParamGather gather(owned.group, /*beside=*/true, /*part=*/2);
  gather.start();
  gather.before(0);
  EXPECT_TRUE(owned.is_complete(0));
  const int other = pair->rank() == 0 ? 3 : 1;  // the end of the other rank's partition
  EXPECT_FALSE(owned.is_complete(other));
  gather.finish();
  for (int unit = 0; unit < 4; ++unit) EXPECT_TRUE(owned.is_complete(unit));
}

RANKS_TEST(ParamGather, WithoutAForwardBesideItIsCompleteAtOnce) {
  Owned owned(test_world());
  ParamGather(owned.group, /*beside=*/false, 3).start();
  for (int unit = 0; unit < 4; ++unit) EXPECT_TRUE(owned.is_complete(unit));
}

}  // namespace
}  // namespace anymesh
