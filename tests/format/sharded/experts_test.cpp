// Reads experts as real DeepSpeed and we write them, and refuses what cannot be.
#include "framework/format/layout/experts.h"

#include <gtest/gtest.h>

#include "framework/format/checkpoint/model.h"
#include "framework/format/layout/shard_layout.h"
#include "framework/format/sharded/stages.h"
#include "framework/format/torch_file/torch_file.h"
#include "framework/util/errors.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

Value layer_entry(int id, const std::string& prefix, int experts, int ep) {
  return Value::dict({{"moe_layer_id", id},
                      {"num_experts", experts},
                      {"ep_size", ep},
                      {"expert_key_prefix", prefix}});
}

Value state_of(std::vector<Value> entries) {
  return Value::dict({{"ds_autoep_layers", Value::list(std::move(entries))}});
}

TEST(ExpertSpread, FindsTheBlockOfARank) {
  const ExpertSpread spread = ExpertSpread::from(
      state_of({layer_entry(1, "4.mlp.experts", 8, 2), layer_entry(0, "2.mlp.experts", 8, 2)}));
  ASSERT_EQ(spread.layers.size(), 2u);
  EXPECT_EQ(spread.layers[0].prefix, "2.mlp.experts");
  EXPECT_TRUE(spread.is_expert("4.mlp.experts.w1"));
  EXPECT_FALSE(spread.is_expert("4.mlp.router.gate.weight"));
  const ExpertSpread::Rank rank = spread.rank_of(/*dp_rank=*/3, /*dp_size=*/6, 0, 1);
  EXPECT_EQ(std::tuple(rank.ep, rank.edp, rank.ep_size, rank.edp_size), std::tuple(1, 1, 2, 3));
  const ExpertSpread::Place place = spread.place_of("2.mlp.experts.w1", {4, 3, 5}, rank);
  EXPECT_EQ(place.shape, (Shape{8, 3, 5}));
  EXPECT_EQ(place.begin, 60);
  EXPECT_EQ(spread.split_key("2.mlp.experts.w2.7"),
            std::pair(std::string("2.mlp.experts.w2"), int64_t{7}));
  EXPECT_EQ(spread.split_key("2.mlp.other.w2.7").second, -1);
}

TEST(ExpertSpread, RecordsWhatItReads) {
  ExpertSpread spread;
  spread.layers = {{"2.mlp.experts", 8}, {"3.mlp.experts", 4}};
  spread.ep_size = 4;
  spread.whole = true;
  Value state = Value::dict();
  spread.record(state, {1, 0, 4, 2}, /*zero3=*/true);
  const ExpertSpread read = ExpertSpread::from(state);
  EXPECT_EQ(read.ep_size, 4);
  EXPECT_TRUE(read.whole);
  ASSERT_EQ(read.layers.size(), 2u);
  EXPECT_EQ(read.layers[1].experts, 4);
  const ExpertSpread::Rank rank = read.rank_of(1, 4, 1, 2);  // tp ranks count as further dp ranks
  EXPECT_EQ(std::tuple(rank.ep, rank.edp, rank.edp_size), std::tuple(3, 0, 2));
}

TEST(ExpertSpread, RefusesWhatCannotBe) {
  const auto refused = [](const Value& state) {
    EXPECT_THROW(ExpertSpread::from(state), DamagedFile) << state.found();
  };
  refused(state_of({layer_entry(0, "a.experts", 8, 3)}));
  refused(state_of({layer_entry(0, "a.experts", 8, 0)}));
  refused(state_of({layer_entry(0, "a.experts", -8, 1)}));
  refused(state_of({layer_entry(0, "a.experts", 8, 2), layer_entry(1, "b.experts", 8, 4)}));
  refused(state_of({layer_entry(0, "a.experts", 8, 2), layer_entry(0, "b.experts", 8, 2)}));
  refused(state_of({Value::dict({{"moe_layer_id", 0}})}));
  const ExpertSpread spread = ExpertSpread::from(state_of({layer_entry(0, "a.experts", 8, 4)}));
  EXPECT_THROW(spread.rank_of(0, 6, 0, 1), DamagedFile);
  EXPECT_THROW(spread.place_of("a.experts.w1", {int64_t{1} << 61, 4}, {1, 0, 4, 1}), DamagedFile);
}

TEST(ShardLayout, BlocksOfExpertsCoverTheWhole) {
  const Shape shape{4, 6, 5};
  for (const int dim : {1, -1}) {
    std::vector<int> seen(120);
    const int tp_size = dim == 1 ? 2 : 1;
    for (int tp = 0; tp < tp_size; ++tp) {
      for (int ep = 0; ep < 2; ++ep) {
        const ShardLayout layout =
            ShardLayout::make(shape, {.replicated = dim < 0, .dim = 1}, tp_size, tp).block(ep, 2);
        EXPECT_EQ(layout.shard_shape()[0], 2);
        layout.for_each_run(0, layout.shard_numel(), [&](int64_t full, int64_t, int64_t n) {
          for (int64_t i = full; i < full + n; ++i) {
            EXPECT_EQ(i / 60, ep);
            ++seen.at(static_cast<size_t>(i));
          }
        });
      }
    }
    EXPECT_EQ(seen, std::vector<int>(120, 1));
  }
  EXPECT_THROW(ShardLayout::make(shape, {.replicated = true}, 1, 0).block(0, 3), DamagedFile);
}

// DeepSpeed's older mixtures number the experts of a rank from 0. Their masters round to the
// weights in the experts' files, which have the numbers of all.
TEST(OlderMixture, HasTheWeightsOfItsFiles) {
  const fs::path tag = fs::path(ANYMESH_CASES) / "moe-ep2" / "checkpoint" / "global_step3";
  const Checkpoint checkpoint = open_checkpoint(tag, 1);
  int tensors = 0;
  for (const int64_t expert : {0, 1}) {
    for (const auto& [key, value] :
         read_torch_file(tag / expert_states_file(0, expert, 0)).entries()) {
      if (!value.is_tensor()) continue;
      const SavedParameter parameter = checkpoint.parameter(key.as_string());
      EXPECT_TRUE(parameter.has_moments()) << key.as_string();
      EXPECT_TRUE(rounds_to(parameter.weight(), value.as_tensor())) << key.as_string();
      ++tensors;
    }
  }
  EXPECT_EQ(tensors, 8);
}

}  // namespace
}  // namespace anymesh
