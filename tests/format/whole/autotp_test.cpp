// Merges the shards of DeepSpeed's AutoTP: of maps made here, and of real checkpoints.

#include <numeric>

#include "framework/format/checkpoint/merge.h"
#include "framework/format/checkpoint/model.h"
#include "framework/format/whole/convert.h"
#include "framework/util/errors.h"
#include "tests/support/affine_maps.h"
#include "tests/support/checkpoints.h"
#include "tests/support/temp_folder.h"

namespace anymesh {
namespace {

// Returns a shard's state in three fragments.
ShardState in_fragments(const std::vector<float>& values) {
  ShardState state;
  const auto count = static_cast<int64_t>(values.size()), part = (count + 2) / 3;
  for (int dp = 0; dp < 3; ++dp) {
    const int64_t begin = std::min(dp * part, count), end = std::min(begin + part, count);
    if (begin == end) continue;
    const std::vector<float> own(values.begin() + begin, values.begin() + end);
    state.fragments.push_back({dp, begin, end - begin, bytes_of(own)});
  }
  return state;
}

// A checkpoint in memory of one parameter, whose shards are cut out of `full` as its map says.
struct OneParameter {
  OneParameter(const Value& map, const std::vector<float>& full) {
    const Value ranks = map.at(keys::kRanks);
    source.tp_size = static_cast<int>(ranks.size());
    info.affine_maps = {{"^p$", map}};
    for (int rank = 0; rank < source.tp_size; ++rank) {
      ParameterShard shard{.tp_rank = rank,
                           .shape = ranks.find(int64_t{rank}).at(keys::kShardShape).as_shape()};
      for (const auto& [state, power] :
           {std::pair{kFp32State, 1}, {kExpAvgState, -1}, {kExpAvgSqState, -2}})
        shard.states[std::string(state)] = in_fragments(shard_by_map(map, rank, full, power));
      source.parameters["p"].push_back(std::move(shard));
    }
  }

  SavedParameter merged() const {
    return Merger(std::make_shared<const ShardedCheckpoint>(source), info).merged("p");
  }

  ShardedCheckpoint source;
  UniversalInfo info;
};

std::vector<float> iota(int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  std::iota(values.begin(), values.end(), 1.0f);
  return values;
}

std::vector<Value> maps() {
  return {
      map_of_slices({8, 3}, 0, {{{0, 4, {0}}}, {{4, 4, {1}}}}),
      map_of_slices({5, 7}, 1, {{{0, 4, {0}}}, {{4, 3, {1}}}}),     // uneven columns
      map_of_slices({2, 7}, 1, {{{0, 7, {0}}}, {{7, 0, {1}}}}),     // one rank has none
      map_of_slices({3, 4, 5}, 1, {{{0, 3, {0}}}, {{3, 1, {1}}}}),  // a middle dim
      map_of_slices({9}, 0, {{{0, 9, {0, 1, 2}}}, {{0, 9, {0, 1, 2}}}, {{0, 9, {0, 1, 2}}}}),
      map_of_slices(
          {12, 2}, 0,  // q, k and v
          {{{0, 4, {0}}, {6, 1, {0}}, {9, 2, {0}}}, {{4, 2, {1}}, {7, 2, {1}}, {11, 1, {1}}}}),
      map_of_slices({10, 3}, 0,  // all have k and v
                    {{{0, 4, {0}}, {6, 4, {0, 1}}}, {{4, 2, {1}}, {6, 4, {0, 1}}}}),
      map_of_slices({3, 8}, 1, {{{0, 2, {0}}, {4, 2, {0}}}, {{2, 2, {1}}, {6, 2, {1}}}}),
      map_of_slices({3, 8}, 1, {{{6, 2, {0}}, {0, 2, {0}}}, {{4, 2, {1}}, {2, 2, {1}}}}),
      map_of_slices({4, 2}, 0, {{{0, 4, {0, 1}, 0.5}}, {{0, 4, {0, 1}, 0.5}}}),
      map_of_slices({4, 6}, 1,
                    {{{0, 2, {0}}, {4, 2, {0, 1}, 4}}, {{2, 2, {1}, 0.25}, {4, 2, {0, 1}, 2}}}),
      map_of({}, {map_rank({}, {map_piece({}, map_view(0, {}), map_view(0, {}), {0})})}),
  };
}

TEST(AutoTp, MergesEveryElementFromItsPlace) {
  for (const Value& map : maps()) {
    const Shape full = map.at(keys::kLogicalShape).as_shape();
    const std::vector<float> values = iota(numel(full));
    const OneParameter checkpoint(map, values);
    for (const std::string_view state : {kFp32State, kExpAvgState, kExpAvgSqState}) {
      const SavedParameter parameter = checkpoint.merged();
      EXPECT_EQ(parameter.keys.size(), 0u);  // as in DeepSpeed's
      const TensorRecord whole = parameter.state(state);
      ASSERT_EQ(whole.shape, full);
      ASSERT_EQ(floats(whole), values) << to_string(full);
      for (size_t begin = 0; begin < values.size(); begin += 3) {
        std::vector<float> range(std::min<size_t>(5, values.size() - begin));
        whole.bytes->read(begin * sizeof(float), std::as_writable_bytes(std::span(range)));
        EXPECT_TRUE(
            std::equal(range.begin(), range.end(), values.begin() + static_cast<ptrdiff_t>(begin)));
      }
    }
  }
}

TEST(AutoTp, ComparesWhatSeveralRanksHave) {
  for (const Value& map : maps()) {
    const Value first = map.at(keys::kRanks).find(int64_t{0}).at(keys::kPieces).items().back();
    if (first.at(keys::kLocations).size() < 2) continue;
    OneParameter checkpoint(map, iota(numel(map.at(keys::kLogicalShape).as_shape())));
    ShardState& state = checkpoint.source.parameters["p"][1].states[std::string(kFp32State)];
    std::vector<float> last = floats(*state.fragments.back().bytes);
    last.back() += 1;
    state.fragments.back().bytes = bytes_of(last);
    const TensorRecord whole = checkpoint.merged().weight();
    EXPECT_REFUSES(read_bytes(whole), "p (fp32): should be the same on all tp ranks");
  }
}

TEST(AutoTp, KeepsTheVocabularysTrueRows) {
  OneParameter checkpoint(map_of_slices({6, 2}, 0, {{{0, 4, {0}}}, {{4, 2, {1}}}}), iota(12));
  checkpoint.info.vocabulary = {"^p$"};
  checkpoint.info.original_vocab_size = 5;
  const SavedParameter parameter = checkpoint.merged();
  EXPECT_TRUE(parameter.keys.at(keys::kVocabTensor).as_bool());
  EXPECT_EQ(floats(parameter.weight()), iota(10));
}

TEST(AutoTp, MapsWinOverPatterns) {
  OneParameter checkpoint(map_of_slices({5, 7}, 1, {{{0, 4, {0}}}, {{4, 3, {1}}}}), iota(35));
  checkpoint.info.tp_replicated = {"^p$", "^q$"};
  EXPECT_EQ(floats(checkpoint.merged().weight()), iota(35));
  const Merger merger(std::make_shared<const ShardedCheckpoint>(checkpoint.source),
                      checkpoint.info);
  merger.merged("p");
  EXPECT_EQ(merger.unused_patterns(), std::vector<std::string>{"^q$"});
  checkpoint.info.affine_maps.push_back(checkpoint.info.affine_maps[0]);
  EXPECT_REFUSES(checkpoint.merged(), "both match p");
}

TEST(AutoTp, ReadsZeRO3AsTheRunHeldIt) {
  const auto folder = fixture("z3-fp32-dp2-autotp");
  const Checkpoint checkpoint = open_checkpoint(folder / "checkpoint", 1);
  const Value truth = read_torch_file(folder / "truth.pt");
  EXPECT_EQ(checkpoint.names().size(), truth.at("fp32").size());
  for (const auto& [key, weight] : truth.at("fp32").entries()) {
    const std::string name = key.as_string();
    const SavedParameter parameter = checkpoint.parameter(name);
    EXPECT_EQ(parameter.shape, weight.as_tensor().shape) << name;
    EXPECT_EQ(floats(parameter.weight()), floats(weight.as_tensor())) << name;
    for (const std::string_view state : {kExpAvgState, kExpAvgSqState})
      EXPECT_EQ(floats(parameter.state(state)),
                floats(truth.at("state").at(name).at(state).as_tensor()))
          << name;
  }
  const SavedParameter down = checkpoint.parameter("down.weight");  // 5 columns, 3 and 2
  EXPECT_EQ(down.slice(0).shard_shape(), (Shape{8, 3}));
  EXPECT_EQ(down.slice(0, 5).shard_shape(), (Shape{8, 1}));
  EXPECT_EQ(down.slice(0, 1).shard_shape(), down.shape);
  EXPECT_THROW(down.slice(0, 4), DamagedFile);
  const SavedParameter three = checkpoint.parameter("three.weight");  // its middle dim is cut
  EXPECT_EQ(three.slice(1).shard_shape(), (Shape{3, 1, 8}));
  EXPECT_EQ(three.slice(2, 3).pieces(), (std::vector<CutPiece>{{2, 0, 1}}));
}

using AutoTpFiles = TempFolder;

TEST_F(AutoTpFiles, ConvertNoMomentsOfScaledWeights) {
  const auto tag = folder_ / "global_step3";
  fs::copy(resolve_tag(fixture("z3-fp32-dp2-autotp") / "checkpoint"), tag);
  for (int dp = 0; dp < 2; ++dp) {
    for (int tp = 0; tp < 2; ++tp) {
      change(tag / zero3_model_states_file(dp, tp),
             {keys::kUniversalInfo, keys::kAffineMap, keys::kAffineParams}, [](Value& params) {
               const std::vector<MapSlice> halved = {{0, 8, {0, 1}, 0.5}};
               params.set("^norm\\.bias$", map_of_slices({8}, 0, {halved, halved}));
             });
    }
  }
  const ConvertOptions options{.input = tag, .output = folder_ / "universal"};
  EXPECT_REFUSES(convert_to_universal(options, {}), "scales norm.bias by 0.5");
  const Checkpoint plain = open_checkpoint(fixture("z3-fp32-dp2-autotp") / "checkpoint", 1),
                   scaled = open_checkpoint(tag, 1);
  const auto first = [](const Checkpoint& checkpoint, std::string_view state) {
    return floats(checkpoint.parameter("norm.bias").state(state))[0];
  };
  EXPECT_EQ(first(scaled, kFp32State), first(plain, kFp32State) * 2);
  EXPECT_EQ(first(scaled, kExpAvgState), first(plain, kExpAvgState) / 2);
}

TEST(AutoTp, RefusesLayoutsThatDeepSpeedCannotDescribe) {
  const Value info =
      Value::dict({{keys::kUniversalVersion, 0.4},
                   {keys::kUnsupportedPatterns, Value::dict({{"^qkv$", "reason"}})}});
  EXPECT_THROW(UniversalInfo::from_value(info), Unreadable);
  EXPECT_REFUSES(UniversalInfo::from_value(info), "^qkv$");
}

}  // namespace
}  // namespace anymesh
