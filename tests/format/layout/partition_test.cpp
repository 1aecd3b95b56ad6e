#include "framework/format/layout/partition.h"

#include "framework/format/layout/names.h"
#include "tests/support/fixtures.h"

namespace anymesh {
namespace {

// Sizes of emb.weight, l1.weight, l1.bias, ln.weight, ln.bias, l2.weight, l2.bias in DeepSpeed runs
// that were inspected.
const std::vector<int64_t> kNumels = {66, 30, 5, 5, 5, 30, 6};

TEST(FlatGroup, AsDeepSpeedDoesAtDp2) {
  const FlatGroup group(kNumels, 2);
  EXPECT_EQ(group.numel(), 147);
  EXPECT_EQ(group.partition_numel(), 74);
  EXPECT_EQ(group.padding(0), 0);
  EXPECT_EQ(group.padding(1), 1);
  EXPECT_EQ(group.fragments(0), (std::vector<Fragment>{{0, 0, 0, 66}, {1, 0, 66, 8}}));
  EXPECT_EQ(group.fragments(1), (std::vector<Fragment>{{1, 8, 0, 22},
                                                       {2, 0, 22, 5},
                                                       {3, 0, 27, 5},
                                                       {4, 0, 32, 5},
                                                       {5, 0, 37, 30},
                                                       {6, 0, 67, 6}}));
}

TEST(FlatGroup, ParameterAlignmentLeavesGaps) {
  const std::vector<int64_t> gaps = {6, 2, 3, 3, 3, 2, 0};
  const FlatGroup group(kNumels, 2, gaps);
  EXPECT_EQ(group.partition_numel(), 84);
  EXPECT_EQ(group.padding(1), 2);
  EXPECT_EQ(group.fragments(1), (std::vector<Fragment>{{1, 12, 0, 18},
                                                       {2, 0, 20, 5},
                                                       {3, 0, 28, 5},
                                                       {4, 0, 36, 5},
                                                       {5, 0, 44, 30},
                                                       {6, 0, 76, 6}}));
}

TEST(FlatGroup, TinyGroupsLeaveRanksWithPaddingOnly) {
  const FlatGroup group(std::vector<int64_t>{21}, 8);
  EXPECT_EQ(group.partition_numel(), 4);
  for (const int rank : {6, 7}) {
    EXPECT_EQ(group.padding(rank), 4);
    EXPECT_TRUE(group.fragments(rank).empty());
  }
  EXPECT_EQ(group.padding(5), 3);
}

TEST(FlatGroup, PartsOfStage3) {
  std::vector<int64_t> parts;
  for (const int64_t numel : kNumels) parts.push_back(zero3_part_numel(numel, 3));
  EXPECT_EQ(parts, (std::vector<int64_t>{22, 10, 2, 2, 2, 10, 2}));
}

// Every element is in exactly one partition, and paddings account for the rest.
TEST(FlatGroup, PartitionsCoverEverythingOnce) {
  for (int dp = 1; dp <= 9; ++dp) {
    for (const auto& numels : {kNumels, std::vector<int64_t>{1}, std::vector<int64_t>{0, 3, 0},
                               std::vector<int64_t>{}}) {
      const FlatGroup group(numels, dp);
      std::vector<int64_t> next(numels.size());
      int64_t padding = 0;
      for (int rank = 0; rank < dp; ++rank) {
        int64_t filled = 0;
        for (const Fragment& f : group.fragments(rank)) {
          EXPECT_EQ(f.param_start, next[f.param]);
          EXPECT_EQ(rank * group.partition_numel() + f.partition_start,
                    group.param_offset(f.param) + f.param_start);
          next[f.param] += f.numel;
          filled += f.numel;
        }
        EXPECT_EQ(filled + group.padding(rank), group.partition_numel());
        padding += group.padding(rank);
      }
      EXPECT_EQ(next, numels);
      EXPECT_EQ(padding, dp * group.partition_numel() - group.numel());
    }
  }
}

TEST(FlatGroup, RefusesNonsense) {
  EXPECT_THROW(FlatGroup(kNumels, 0), std::invalid_argument);
  EXPECT_THROW(FlatGroup(std::vector<int64_t>{INT64_MAX, INT64_MAX}, 1), std::invalid_argument);
  EXPECT_THROW(FlatGroup(std::vector<int64_t>{-1}, 1), std::invalid_argument);
  EXPECT_THROW(FlatGroup(kNumels, 1, std::vector<int64_t>{1}), std::invalid_argument);
}

struct Recorded {
  const char* name;
  int step, mp_size, dp_size;
  bool bf16;
};

// Compares with the names, places, sizes and paddings of each rank in real checkpoints.
TEST(FlatGroup, AgreesWithTheMappingsOfRealCheckpoints) {
  for (const Recorded& c : {Recorded{"z1-bf16-dp2", 4, 1, 2, true},
                            {"z2-bf16-dp3", 4, 1, 3, true},
                            {"z2-bf16-dp2-frozen", 4, 1, 2, true},
                            {"z1-bf16-tp2pp2dp1", 10, 4, 1, true},
                            {"z1-bf16-tp1pp1dp2", 10, 1, 2, true}}) {
    const auto folder = fixture(c.name) / "checkpoint" / tag_folder(c.step);
    for (int mp = 0; mp < c.mp_size; ++mp) {
      const Value shapes = read_torch_file(folder / model_states_file(mp)).at(keys::kParamShapes);
      for (int dp = 0; dp < c.dp_size; ++dp) {
        const Value state = read_torch_file(folder / optim_states_file(dp, mp, c.bf16))
                                .at(keys::kOptimizerStateDict);
        for (size_t g = 0; g < shapes.size(); ++g) {
          std::vector<int64_t> numels;
          for (const auto& [name, shape] : shapes.at(g).entries())
            numels.push_back(numel(shape.as_shape()));
          const FlatGroup group(numels, c.dp_size);
          const auto names = shapes.at(g).entries();
          const auto recorded = state.at(keys::kParamSliceMappings).at(g).entries();
          const auto fragments = group.fragments(dp);
          ASSERT_EQ(recorded.size(), fragments.size()) << c.name;
          for (size_t i = 0; i < fragments.size(); ++i) {
            EXPECT_EQ(recorded[i].first, names[fragments[i].param].first) << c.name;
            EXPECT_EQ(recorded[i].second,
                      fragment_address(fragments[i].numel, fragments[i].partition_start))
                << c.name;
          }
          const Value adam =
              state.at(keys::kBaseOptimizerState).at(keys::kState).entries().at(g).second;
          EXPECT_EQ(adam.at(kExpAvgState).as_tensor().numel(), group.partition_numel());
          EXPECT_EQ(state.at(keys::kGroupPaddings).at(g).as_int(), group.padding(dp)) << c.name;
        }
      }
    }
  }
}

}  // namespace
}  // namespace anymesh
