#include "framework/format/sharded/sharded_checkpoint.h"

#include <climits>

#include "framework/util/parallel_for.h"
#include "tests/support/checkpoints.h"

namespace anymesh {
namespace {

class Source : public TempFolder {
 protected:
  fs::path copy(const std::string& name) { return copy_of(name, folder_); }

  static std::string refusal(const fs::path& folder) {
    return message_of([&] { open_sharded_checkpoint(folder, 2); });
  }
};

TEST(FileNames, AreParsedAsTheyAreMade) {
  using Kind = CheckpointFileName::Kind;
  const auto optim = parse_checkpoint_file_name(optim_states_file(12, 3, true));
  ASSERT_TRUE(optim);
  EXPECT_EQ(std::tuple(optim->kind, optim->dp_rank, optim->mp_rank, optim->bf16),
            std::tuple(Kind::kOptimStates, 12, 3, true));
  const auto model = parse_checkpoint_file_name(model_states_file(103));
  ASSERT_TRUE(model);
  EXPECT_EQ(std::tuple(model->kind, model->mp_rank), std::tuple(Kind::kModelStates, 103));
  const auto zero3 = parse_checkpoint_file_name(zero3_model_states_file(1, 2));
  ASSERT_TRUE(zero3);
  EXPECT_EQ(std::tuple(zero3->kind, zero3->dp_rank, zero3->mp_rank),
            std::tuple(Kind::kZero3ModelStates, 1, 2));
  const auto layer = parse_checkpoint_file_name(layer_states_file(4, 1));
  ASSERT_TRUE(layer);
  EXPECT_EQ(std::tuple(layer->kind, layer->layer, layer->tp_rank), std::tuple(Kind::kLayer, 4, 1));
  EXPECT_EQ(parse_checkpoint_file_name("layer_04-model_states.pt")->tp_rank, 0);
  const auto expert = parse_checkpoint_file_name(expert_states_file(1, 12, 3));
  ASSERT_TRUE(expert);
  EXPECT_EQ(std::tuple(expert->kind, expert->layer, expert->expert, expert->mp_rank),
            std::tuple(Kind::kExpert, 1, 12, 3));
  EXPECT_EQ(parse_checkpoint_file_name("expert_2_mp_rank_00_model_states.pt")->expert, 2);
  const auto experts = parse_checkpoint_file_name(expert_optim_states_file(4, 5));
  ASSERT_TRUE(experts);
  EXPECT_EQ(std::tuple(experts->kind, experts->ep_rank, experts->mp_rank),
            std::tuple(Kind::kExpertOptim, 4, 5));
  for (const char* other :
       {"latest", "mp_rank_00", "mp_rank_-1_model_states.pt", "bf16_mp_rank_00_model_states.pt",
        "layer_02-model_01", "mp_rank_00_model_states.pt.tmp", "expert_mp_rank_00_model_states.pt",
        "layer_0_expert_1_mp_rank_00_optim_states.pt", "expp_rank_0_mp_rank_00_model_states.pt"}) {
    EXPECT_FALSE(parse_checkpoint_file_name(other)) << other;
  }
  EXPECT_EQ(model_states_file(7), "mp_rank_07_model_states.pt");
  EXPECT_EQ(optim_states_file(0, 7, false), "zero_pp_rank_0_mp_rank_07_optim_states.pt");
}

TEST(ShardedCheckpoint, FindsMeshAndParameters) {
  const auto source =
      open_sharded_checkpoint(fixture("z1-bf16-tp2pp2dp1") / "checkpoint" / tag_folder(10), 3);
  EXPECT_EQ(std::tuple(source.stage, source.tp_size, source.pp_size, source.dp_size),
            std::tuple(1, 2, 2, 1));
  EXPECT_EQ(source.parameters.size(), 52u);
  EXPECT_EQ(source.parameters.at("tied_modules.embed.word_embeddings.weight").size(),
            4u);  // both stages, both tp ranks
  const auto& shards = source.parameters.at("5.mlp.dense_4h_to_h.weight");
  ASSERT_EQ(shards.size(), 2u);
  EXPECT_EQ(shards[1].shape, (Shape{64, 128}));
  EXPECT_EQ(shards[1].pp_rank, 1);
  EXPECT_EQ(shards[1].states.at("exp_avg").fragments.front().numel, 64 * 128);
  EXPECT_EQ(shards[1].step.as_double(), 10.0);
}

TEST(ShardedCheckpoint, SplitsParametersOverDataParallelRanks) {
  const auto source =
      open_sharded_checkpoint(fixture("z2-bf16-dp3") / "checkpoint" / tag_folder(4), 1);
  EXPECT_EQ(std::tuple(source.stage, source.dp_size), std::tuple(2, 3));
  bool spans = false;
  for (const auto& [name, shards] : source.parameters) {
    int64_t next = 0;
    for (const auto& fragment : shards.front().states.at("fp32").fragments) {
      EXPECT_EQ(fragment.begin, next) << name;
      EXPECT_GE(fragment.bytes->size(),
                fragment.offset + static_cast<uint64_t>(fragment.numel) * 4);
      next += fragment.numel;
    }
    EXPECT_EQ(next, numel(shards.front().shape)) << name;
    spans |= shards.front().states.at("fp32").fragments.size() > 1;
  }
  EXPECT_TRUE(spans);
}

TEST(ShardedCheckpoint, ReadsZero0AndZero3) {
  const auto zero0 =
      open_sharded_checkpoint(fixture("z0-fp32-dp2") / "checkpoint" / tag_folder(4), 1, nullptr,
                              /*module_order=*/true);
  EXPECT_EQ(std::tuple(zero0.stage, zero0.dp_size, zero0.parameters.size()),
            std::tuple(0, 2, size_t{28}));
  EXPECT_EQ(zero0.parameters.at("h.1.ln_2.bias").front().shape, (Shape{24}));
  EXPECT_EQ(zero0.optimizer_state.at(keys::kParamGroups).size(), 2u);
  const auto zero3 =
      open_sharded_checkpoint(fixture("z3-fp32-dp3-frozen") / "checkpoint" / tag_folder(4), 1);
  EXPECT_EQ(std::tuple(zero3.stage, zero3.dp_size), std::tuple(3, 3));
}

TEST_F(Source, SaysWhatIsMissing) {
  const fs::path tag = copy("z2-bf16-dp3");
  EXPECT_THAT(refusal(folder_ / "absent"),
              HasSubstr("does not exist; " + folder_.string() + " holds: damaged"));
  fs::remove(tag / optim_states_file(1, 0, true));
  EXPECT_THAT(
      refusal(tag),
      HasSubstr("files are missing:\n  bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt\nIt holds"));
  fs::remove(tag / optim_states_file(2, 0, true));  // the highest: known from dp_world_size
  EXPECT_THAT(refusal(tag), HasSubstr("bf16_zero_pp_rank_2"));
  fs::remove(tag / model_states_file(0));
  EXPECT_THAT(refusal(tag), HasSubstr("has no *_model_states.pt"));
}

TEST_F(Source, RefusesAMissingModelParallelRank) {
  const fs::path tag = copy("z1-bf16-tp2pp2dp1");
  fs::remove(tag / model_states_file(2));
  EXPECT_THAT(refusal(tag), HasSubstr("missing:\n  mp_rank_02_model_states.pt"));
}

// A name may claim any rank.
TEST_F(Source, ListsTwentyOfTheMissingFiles) {
  const fs::path tag = copy("z2-bf16-dp3"), model = tag / model_states_file(INT_MAX),
                 optimizer = tag / optim_states_file(INT_MAX, 0, true);
  write_file(optimizer, "");
  std::string message = refusal(tag);
  EXPECT_THAT(message, HasSubstr("missing:\n  bf16_zero_pp_rank_3_mp_rank_00_optim_states.pt\n"));
  EXPECT_THAT(message,
              HasSubstr("_22_mp_rank_00_optim_states.pt\n  ... and 2147483624 more\nIt holds"));
  fs::remove(optimizer);
  write_file(model, "");
  message = refusal(tag);
  EXPECT_THAT(message, HasSubstr("mp_rank_20_model_states.pt\n  ... and 2147483626 more"));
  fs::remove(model);
  fs::copy(tag / optim_states_file(0, 0, true), tag / optim_states_file(0, 1, true));
  EXPECT_THAT(refusal(tag), HasSubstr("missing:\n  mp_rank_01_model_states.pt\nIt holds"));
}

TEST_F(Source, RefusesTwoFilesOfARank) {
  const fs::path tag = copy("z1-bf16-tp2pp2dp1");
  for (const auto& [file, twin] :
       {std::pair(layer_states_file(2, 0), "layer_02-model_states.pt"),
        std::pair(model_states_file(1), "fp16_mp_rank_01_model_states.pt"),
        std::pair(optim_states_file(0, 1, true), "zero_pp_rank_0_mp_rank_01_optim_states.pt")}) {
    fs::copy(tag / file, tag / twin);
    const std::string message = refusal(tag),
                      start = tag.string() + ": two files are of the same rank, ";
    EXPECT_TRUE(message == start + file + " and " + twin ||
                message == start + twin + " and " + file)
        << message;
    fs::remove(tag / twin);
  }
}

TEST_F(Source, FindsTheMeshOfOldCheckpointsByTheirLayerFiles) {
  const fs::path tag = copy("z1-bf16-tp2pp2dp1");
  for (int mp = 0; mp < 4; ++mp)
    change(tag / model_states_file(mp), [](Value& v) { v.erase(keys::kParallelDimensions); });
  const auto source = open_sharded_checkpoint(tag, 1);
  EXPECT_EQ(std::tuple(source.tp_size, source.pp_size), std::tuple(2, 2));
}

TEST_F(Source, RefusesRanksThatDisagree) {
  const fs::path tag = copy("z1-bf16-tp2pp2dp1");
  change(tag / model_states_file(3), [](Value& v) {
    v.set(keys::kParallelDimensions, Value::dict({{keys::kPpDegree, 1}, {keys::kTpDegree, 4}}));
  });
  EXPECT_THAT(refusal(tag), HasSubstr("the same dimensions as in rank 0"));
}

// DeepSpeed's own converter believes such mappings and scrambles the parameters.
TEST_F(Source, RefusesAMappingThatIsNotTheLayout) {
  const fs::path tag = copy("z2-bf16-dp3");
  change(tag / optim_states_file(0, 0, true),
         {keys::kOptimizerStateDict, keys::kParamSliceMappings, 0, 1},
         [](Value& v) { v = fragment_address(v.at(keys::kNumel).as_int(), 1); });
  EXPECT_THAT(refusal(tag), HasSubstr("elements at 1, but the parameters before it put"));
}

TEST_F(Source, RefusesMoreElementsThanCanBeCounted) {
  const fs::path tag = copy("z2-bf16-dp3");
  change(tag / model_states_file(0), {keys::kParamShapes, 0, 1},
         [](Value& v) { v = Value::list({INT64_MAX / 2}); });
  EXPECT_EQ(refusal(tag), (tag / optim_states_file(0, 0, true)).string() +
                              ": ['optimizer_state_dict']: a group of parameters is too large");
}

TEST_F(Source, RefusesAlignmentPaddingsThatAreNone) {
  const fs::path tag = copy("z2-bf16-dp3"), file = tag / optim_states_file(0, 0, true);
  const size_t count =
      read_torch_file(tag / model_states_file(0)).at(keys::kParamShapes).at(0).size();
  const auto message = [&](std::vector<int64_t> paddings) {
    change(file, {keys::kOptimizerStateDict}, [&](Value& v) {
      v.set(keys::kParamAlignmentPaddings, Value::list({Value::list_of(paddings)}));
    });
    return refusal(tag);
  };
  const std::string where =
      file.string() + ": ['optimizer_state_dict']['param_alignment_paddings'][0]";
  std::vector<int64_t> paddings(count);
  EXPECT_EQ(message({0}), where + ": expected one for each of " + std::to_string(count) +
                              " parameters, found list of 1");
  for (const int64_t wrong : {int64_t{-1}, INT64_MAX}) {
    paddings[1] = wrong;
    EXPECT_EQ(message(paddings),
              where + "[1]: expected 0 to 1073741824 elements, found " + std::to_string(wrong));
  }
}

TEST_F(Source, TakesAStageByName) {
  const fs::path tag = copy("z2-bf16-dp3"), file = tag / optim_states_file(0, 0, true);
  const auto pickle_by_name = [&](const char* name) {
    change(file, {keys::kOptimizerStateDict}, [&](Value& state) {
      const Value::Global get{"__builtin__", "getattr"},
          type{"deepspeed.runtime.zero.config", "ZeroStageEnum"};
      state.set(keys::kZeroStage, Value::Object{.type = std::make_shared<Value::Global>(get),
                                                .call = true,
                                                .args = {Value(type), Value(name)}});
    });
  };
  pickle_by_name("gradients");
  EXPECT_EQ(open_sharded_checkpoint(tag, 1).stage, 2);
  pickle_by_name("__class__");
  EXPECT_THAT(refusal(tag), HasSubstr("['zero_stage']: expected a ZeRO stage"));
}

TEST_F(Source, RefusesRanksAtDifferentSteps) {
  const fs::path tag = copy("z2-bf16-dp3");
  change(tag / optim_states_file(1, 0, true), kEachState,
         [](Value& adam) { adam.set(kStepState, 99); });
  EXPECT_THAT(refusal(tag), HasSubstr("as on other ranks"));
}

TEST_F(Source, RefusesAnOrderOfParametersThatNothingTells) {
  const fs::path tag = copy("z0-fp32-dp2");
  change(tag / model_states_file(0), {keys::kOptimizer, keys::kParamGroups, 1},
         [](Value& group) { group.set(keys::kWeightDecay, 0.1); });
  const auto states_refused = [&](bool module_order) {
    return open_sharded_checkpoint(tag, 2, nullptr, module_order).states_refused;
  };
  EXPECT_THAT(states_refused(true), HasSubstr("with and one without weight decay"));
  EXPECT_THAT(states_refused(false), HasSubstr("DeepSpeed does not record which at ZeRO 0"));
}

TEST(ParallelFor, RethrowsTheFirstFailure) {
  std::atomic<int> sum{0};
  parallel_for(100, 4, [&](size_t i) { sum += static_cast<int>(i); });
  EXPECT_EQ(sum, 4950);
  EXPECT_EQ(message_of([] {
              parallel_for(10, 3, [](size_t i) {
                if (i == 5) throw DamagedFile("five");
              });
            }),
            "five");
}

}  // namespace
}  // namespace anymesh
