// The bugs and limits of DeepSpeed 0.19.8's converter and of Megatron-DeepSpeed's checkpoints, and
// the right results here. Test numbers are the numbers in the table of docs/checkpoint-format.md.
// Missing numbers have nothing to do with this library; the table says why.

#include <algorithm>

#include "framework/format/checkpoint/model.h"
#include "framework/format/layout/merge_rules.h"
#include "framework/format/layout/shard_layout.h"
#include "framework/format/sharded/sharded_checkpoint.h"
#include "framework/format/whole/convert.h"
#include "tests/support/synthetic.h"

namespace anymesh {
namespace {

std::vector<float> numbered(int64_t count, float first) {
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(first + static_cast<float>(i));
  return values;
}

class DeepSpeedBugs : public TempFolder {
 protected:
  fs::path tag_ = folder_ / "tag", output_ = folder_ / "universal";

  ConvertReport convert(const fs::path& input) {
    return convert_to_universal({.input = input, .output = output_}, {});
  }
  ConvertReport convert(const Synthetic& source) {
    source.write(tag_);
    return convert(tag_);
  }
  std::string refusal(const fs::path& input) {
    return message_of([&] { convert(input); });
  }
  Value state(const std::string& name, std::string_view kind) const {
    return read_torch_file(output_ / kZeroFolder / name / state_file(kind));
  }
  std::vector<float> values(const std::string& name, std::string_view kind) const {
    return floats(state(name, kind).at(keys::kParam).as_tensor());
  }
  Value optimizer_state() const {
    return read_torch_file(output_ / kZeroFolder / kOptimizerStateFile);
  }
};

Value info_of(std::vector<Value::Entry> entries) {
  entries.emplace(entries.begin(), keys::kUniversalVersion, 0.4);
  return Value::dict(std::move(entries));
}

// DeepSpeed crashes on the nested `module` of a Megatron model without a pipeline.
TEST_F(DeepSpeedBugs, B01_NestedModule) {
  EXPECT_EQ(convert(tag_of("z2-bf16-tp2dp2-nopipe")).parameters, 52);
  const std::string dense = "language_model.encoder.layers.3.self_attention.dense.weight";
  EXPECT_EQ(state(dense, kFp32State).at(keys::kParam).as_tensor().shape, (Shape{64, 64}));
  EXPECT_EQ(state(dense, kFp32State).at(keys::kCatDim).as_int(), 1);
}

// DeepSpeed writes cat_dim 0 for the row-parallel weights at tp 1, which breaks them at tp 2.
TEST_F(DeepSpeedBugs, B02_RowParallelWeightsOfTp1) {
  convert(tag_of("z1-bf16-tp1pp1dp2"));
  for (const char* name : {"3.self_attention.dense.weight", "5.mlp.dense_4h_to_h.weight"})
    EXPECT_EQ(state(name, kExpAvgState).at(keys::kCatDim).as_int(), 1) << name;
  EXPECT_EQ(state("3.mlp.dense_h_to_4h.weight", kExpAvgState).at(keys::kCatDim).as_int(), 0);
}

// DeepSpeed scrambles parameters that round_robin_gradients reordered. Their order in
// param_slice_mappings differs from param_shapes, which is right if the model's weights confirm it.
TEST_F(DeepSpeedBugs, B03_RoundRobinGradients) {
  const fs::path tag = copy_of("z2-bf16-dp3", folder_);
  for (int dp = 0; dp < 3; ++dp) {
    const fs::path file = tag / optim_states_file(dp, 0, true);
    change(file, [](Value& v) {
      v.set(keys::kDsConfig, Value::dict({{keys::kZeroOptimization,
                                           Value::dict({{keys::kRoundRobinGradients, true}})}}));
    });
    change(file, {keys::kOptimizerStateDict, keys::kParamSliceMappings, kEach},
           [](Value& mapping) { mapping = Value::ordered_dict(); });
  }
  convert(tag);
  change(tag / model_states_file(0), {keys::kParamShapes, 0}, [](Value& shapes) {
    auto entries = shapes.entries();
    const auto of_shape = [&](const Value::Entry& e) { return e.second == entries[2].second; };
    const auto other = std::find_if(entries.begin() + 3, entries.end(), of_shape);
    ASSERT_NE(other, entries.end());
    std::swap(entries[2].first, other->first);
    shapes = Value::ordered_dict(entries);
  });
  EXPECT_THAT(refusal(tag), HasSubstr("its masters do not round to the model's weights"));
}

// DeepSpeed's ZeRO 3 loader gives all groups the first one's hyper-parameters. Our folder has each
// one's.
TEST_F(DeepSpeedBugs, B04_HyperParametersOfEveryGroup) {
  convert(tag_of("z3-fp32-dp3-frozen"));
  const Value groups = optimizer_state().at(keys::kParamGroups);
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_NE(groups.at(0).at(keys::kWeightDecay).as_double(),
            groups.at(1).at(keys::kWeightDecay).as_double());
}

// DeepSpeed's loader fails on ranks that hold padding alone: 21 elements on 8 ranks.
TEST_F(DeepSpeedBugs, B05_PartitionsOfPaddingAlone) {
  convert(Synthetic{.parameters = {{"a.weight", {3, 7}}}, .dp = 8});
  EXPECT_EQ(values("a.weight", kFp32State), numbered(21, 0));
  EXPECT_EQ(values("a.weight", kExpAvgSqState), numbered(21, 0.5f));
}

// BF16_Optimizer counts all padding on its last rank: 11 elements of a partition of 4. DeepSpeed's
// converter then reads out of bounds.
TEST_F(DeepSpeedBugs, B06_PaddingBeyondThePartition) {
  const Synthetic source{.parameters = {{"a.weight", {3, 7}}}, .dp = 8, .bf16_optimizer = true};
  source.write(tag_);
  const Value file = read_torch_file(tag_ / optim_states_file(7, 0, true));
  EXPECT_EQ(file.at(keys::kOptimizerStateDict).at(keys::kGroupPaddings).at(0).as_int(), 11);
  convert(tag_);
  EXPECT_EQ(values("a.weight", kFp32State), numbered(21, 0));
  EXPECT_EQ(values("a.weight", kExpAvgState), numbered(21, 0.25f));
}

Synthetic vocabulary_of_5(bool megatron) {
  return {.parameters = {{"word.weight", {4, 2}}},
          .tp = 2,
          .megatron = megatron,
          .info = info_of({{keys::kOriginalVocabSize, 5},
                           {keys::kPaddedVocabSize, 8},
                           {keys::kVocabularyPatterns, Value::list({"word.weight"})}})};
}

// Padding rows that were trained are lost, here too, but with a warning. Our file holds only the
// real rows; DeepSpeed's keeps the padded storage behind them.
TEST_F(DeepSpeedBugs, B07_VocabularyPadding) {
  const ConvertReport report = convert(vocabulary_of_5(true));
  ASSERT_EQ(report.warnings.size(), 1u);
  EXPECT_THAT(report.warnings[0], HasSubstr("rows 5 to 8 of the vocabulary are padding"));
  const Value word = state("word.weight", kFp32State);
  EXPECT_TRUE(word.at(keys::kVocabTensor).as_bool());
  EXPECT_EQ(word.at(keys::kParam).as_tensor().shape, (Shape{5, 2}));
  EXPECT_EQ(values("word.weight", kFp32State),
            (std::vector<float>{0, 1, 2, 3, 4, 5, 6, 7, 1000, 1001}));
  fs::remove_all(tag_);
  EXPECT_TRUE(convert(vocabulary_of_5(false)).warnings.empty());
}

// Later Megatron-DeepSpeed keeps thirds in the fused weight, and no file says so. The converter
// warns if the checkpoint could be such a one.
TEST_F(DeepSpeedBugs, B08_ThirdsInTheFusedWeight) {
  Synthetic source{.parameters = {{"2.self_attention.query_key_value.weight", {6, 2}}},
                   .tp = 2,
                   .megatron = true,
                   .info = info_of({})};
  const auto warnings = convert(source).warnings;
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0], HasSubstr("of such a checkpoint the result is good at tp 2 alone"));
  fs::remove_all(tag_);
  source.tp = 1;
  EXPECT_TRUE(convert(source).warnings.empty());
}

// Megatron's ZeRO 3 decays no weights. Its one group says so, and pretrain_gpt says which value
// wins.
TEST_F(DeepSpeedBugs, B09_NoWeightDecayUnderZero3) {
  convert(tag_of("z3-bf16-dp2-nopipe"));
  const Value groups = optimizer_state().at(keys::kParamGroups);
  ASSERT_EQ(groups.size(), 1u);
  EXPECT_EQ(groups.at(0).at(keys::kWeightDecay).as_double(), 0.0);
}

// DeepSpeed pairs groups by position and drops the rest. Here this is refused.
TEST_F(DeepSpeedBugs, B10_AnotherNumberOfGroups) {
  const fs::path tag = copy_of("z2-bf16-dp3", folder_);
  change(tag / model_states_file(0), [](Value& v) {
    v.set(keys::kParamShapes, Value::list({v.at(keys::kParamShapes).at(0)}));
  });
  EXPECT_THAT(refusal(tag), HasSubstr("partitions of 1 groups"));
}

// DeepSpeed takes the step of tp rank 0, whatever the others say. Here this is refused.
TEST_F(DeepSpeedBugs, B11_StepsThatDiffer) {
  Synthetic{.parameters = {{"a.weight", {2, 2}}}, .tp = 2, .info = info_of({})}.write(tag_);
  change(tag_ / optim_states_file(0, 1, true), kEachState,
         [](Value& adam) { adam.set(kStepState, 5); });
  EXPECT_THAT(refusal(tag_), HasSubstr("for a.weight, as on tp rank 0"));
}

// A tp rank without moments or without a step does not stand for the others either.
TEST_F(DeepSpeedBugs, B11_StatesThatOneRankLacks) {
  for (const int rank : {0, 1}) {
    for (const bool all : {false, true}) {
      fs::remove_all(tag_);
      Synthetic{.parameters = {{"a.weight", {2, 2}}}, .tp = 2, .info = info_of({})}.write(tag_);
      const auto path = std::vector(kEachState.begin(), kEachState.end() - all);
      change(tag_ / optim_states_file(0, rank, true), path,
             [&](Value& v) { all ? v = Value::dict() : v.erase(kStepState); });
      const std::string expected =
          all ? "exp_avg of tp rank " + std::to_string(rank) + " has 0 elements, expected 4"
              : "for a.weight, as on tp rank 0";
      EXPECT_THAT(refusal(tag_), HasSubstr(expected)) << rank;
    }
  }
}

// A pipeline's ZeRO 0 checkpoint in bf16 has no shapes: names and places are in the slice mappings,
// shapes in the model's weights. deepspeed_cases_test.cpp has real ones.
TEST_F(DeepSpeedBugs, B12_Bf16OptimizerAtZero0) {
  Synthetic{
      .parameters = {{"b.weight", {3, 7}}, {"a.weight", {2, 2}}}, .dp = 3, .bf16_optimizer = true}
      .write(tag_);
  change(tag_ / model_states_file(0), [](Value& v) { v.set(keys::kParamShapes, {}); });
  EXPECT_THAT(refusal(tag_), HasSubstr("no file has the weights of b.weight"));
  const auto with_weights = [&](Shape a) {
    change(tag_ / model_states_file(0), [&](Value& v) {
      const auto zeros = [](const Shape& shape) {
        const std::vector<uint16_t> values(static_cast<size_t>(numel(shape)));
        return TensorRecord{DType::kBFloat16, shape, false, bytes_of(values)};
      };
      v.set(keys::kModule,
            Value::ordered_dict({{"a.weight", zeros(a)}, {"b.weight", zeros({3, 7})}}));
    });
  };
  with_weights({2, 3});
  EXPECT_THAT(refusal(tag_),
              HasSubstr("says 4 elements at 1, but the parameters before it put 6 at 1"));
  with_weights({2, 2});
  convert(tag_);
  EXPECT_EQ(values("b.weight", kFp32State), numbered(21, 0));
  EXPECT_EQ(values("a.weight", kFp32State), numbered(4, 21));
  EXPECT_EQ(values("a.weight", kExpAvgSqState), numbered(4, 21.5f));
  EXPECT_EQ(open_sharded_checkpoint(tag_, 1).stage, 0);
}

// Without the mappings too, only the model's rounded weights can be read.
TEST_F(DeepSpeedBugs, B12_WithoutSliceMappings) {
  Synthetic{.parameters = {{"a.weight", {2, 2}}}, .bf16_optimizer = true}.write(tag_);
  change(tag_ / model_states_file(0), [](Value& v) {
    const TensorRecord weight{DType::kBFloat16, {2, 2}, false, bytes_of<uint16_t>({1, 2, 3, 4})};
    v.set(keys::kParamShapes, {});
    v.set(keys::kModule, Value::ordered_dict({{"a.weight", weight}}));
  });
  change(tag_ / optim_states_file(0, 0, true), {keys::kOptimizerStateDict},
         [](Value& state) { state.erase(keys::kParamSliceMappings); });
  EXPECT_THAT(refusal(tag_), HasSubstr("nothing says which partition has which parameters"));
  EXPECT_TRUE(open_checkpoint(tag_, 1).weights_rounded);
}

// DeepSpeed sorts by name, so rank 100 comes before rank 11. It also takes layer 100 for layer 10.
TEST_F(DeepSpeedBugs, B13_MoreThan99RanksAndLayers) {
  convert(Synthetic{.parameters = {{"a.weight", {1, 2}}}, .tp = 101, .info = info_of({})});
  const std::vector<float> rows = values("a.weight", kFp32State);
  ASSERT_EQ(rows.size(), 202u);
  for (size_t rank = 0; rank < 101; ++rank)
    EXPECT_EQ(rows[2 * rank], 1000.0f * static_cast<float>(rank));

  Synthetic{.parameters = {{"a.weight", {1, 2}}}}.write(folder_ / "layers");
  change(folder_ / "layers" / model_states_file(0),
         [](Value& v) { v.erase(keys::kParallelDimensions); });
  for (const int layer : {1, 10, 100, 101})
    write_torch_file(folder_ / "layers" / layer_states_file(layer, 0), Value::ordered_dict());
  const ShardedCheckpoint source = open_sharded_checkpoint(folder_ / "layers", 1);
  EXPECT_EQ(source.tp_size, 1);
  EXPECT_TRUE(source.layer_files.contains({100, 0}));
}

// DeepSpeed leaves an empty latest_universal inside the folder.
TEST_F(DeepSpeedBugs, B15_TrailingSlash) {
  convert_to_universal(
      {.input = tag_of("z1-bf16-dp2").string() + "/", .output = output_.string() + "/"}, {});
  EXPECT_EQ(read_file(folder_ / kLatestUniversalFile), "universal");
  EXPECT_FALSE(fs::exists(output_ / kLatestUniversalFile));
}

// DeepSpeed's loader takes a vocabulary with as many rows as a rank's shard for one that all ranks
// hold.
TEST_F(DeepSpeedBugs, B16_AShardOfAsManyRowsAsTheVocabulary) {
  MergeRule rule;
  rule.vocabulary = true;
  const std::vector<Shape> shards(2, Shape{5, 2});
  const MergeShape merged = merge_shape("word.weight", rule, shards, 5);
  EXPECT_EQ(merged.full, (Shape{5, 2}));
  for (const int rank : {0, 1}) {
    int64_t elements = 0;
    ShardLayout::make(merged.full, merged.cut, 2, rank)
        .for_each_run(0, 10, [&](int64_t, int64_t, int64_t n) { elements += n; });
    EXPECT_EQ(elements, rank == 0 ? 10 : 0);
  }
}

// DeepSpeed crashes on the lists of "elastic_checkpoint": true.
TEST_F(DeepSpeedBugs, B17_ElasticCheckpoints) {
  convert(
      Synthetic{.parameters = {{"a.weight", {3, 7}}, {"a.bias", {4}}}, .dp = 3, .elastic = true});
  EXPECT_EQ(values("a.weight", kFp32State), numbered(21, 0));
  EXPECT_EQ(values("a.weight", kExpAvgState), numbered(21, 0.25f));
  EXPECT_EQ(values("a.bias", kExpAvgSqState), numbered(4, 21.5f));
  EXPECT_EQ(state("a.bias", kStepState).as_double(), 4.0);
  EXPECT_EQ(optimizer_state().at(keys::kParamGroups).size(), 1u);
}

// With --sequence-parallel, learned positions have a name that no pattern matches.
TEST_F(DeepSpeedBugs, B18_LocalPositionEmbeddings) {
  const std::string name = "1.position_embeddings.local_embeddings.weight";
  Synthetic{.parameters = {{name, {2, 2}}},
            .tp = 2,
            .info = info_of({{keys::kTpReplicatedPatterns,
                              Value::list({R"(\d+.position_embeddings.weight)"})}})}
      .write(tag_);
  EXPECT_THAT(refusal(tag_), HasSubstr("--no_strict makes it a warning"));
  convert_to_universal({.input = tag_, .output = output_, .strict = false}, {});
  EXPECT_EQ(values(name, kFp32State), (std::vector<float>{0, 1, 2, 3, 1000, 1001, 1002, 1003}));
}

// DeepSpeed refuses replicas that differ, too. Our message has the parameter and the difference.
TEST_F(DeepSpeedBugs, B19_ReplicasThatDiffer) {
  Synthetic{.parameters = {{"norm.weight", {4}}},
            .tp = 2,
            .info = info_of({{keys::kTpReplicatedPatterns, Value::list({"norm.weight"})}})}
      .write(tag_);
  EXPECT_THAT(refusal(tag_),
              HasSubstr("norm.weight (fp32): should be the same on all tp ranks, but rank "
                        "1's differs in 4 of 4 elements, at most by 1.000e+03"));
}

// Some optimizers keep their step in param_groups. DeepSpeed's ZeRO 3 loader fails on such a
// folder.
TEST_F(DeepSpeedBugs, B20_StepInTheParameterGroups) {
  const fs::path tag = copy_of("z3-fp32-dp3-frozen", folder_);
  for (int dp = 0; dp < 3; ++dp) {
    change(tag / optim_states_file(dp, 0, false),
           {keys::kOptimizerStateDict, keys::kOptimizerStateDict}, [](Value& torch) {
             edit_at(torch, {keys::kState, kEach}, [](Value& adam) { adam.erase(kStepState); });
             edit_at(torch, {keys::kParamGroups, kEach},
                     [](Value& group) { group.set(kStepState, 4); });
           });
  }
  convert(tag);
  EXPECT_EQ(state("wte.weight", kStepState).as_int(), 4);
  const Value adam = optimizer_state().at(keys::kOptimizerStateDict).at(keys::kState);
  EXPECT_EQ(adam.entries()[0].second.at(kStepState).as_int(), 4);
}

// zero_to_fp32 cannot read tensor parallelism, pipelines or BF16_Optimizer; Checkpoint can.
TEST_F(DeepSpeedBugs, B21_WholeTensorsOfAnyMesh) {
  const Checkpoint mesh = open_checkpoint(tag_of("z1-bf16-tp2pp2dp1"), 1);
  EXPECT_EQ(mesh.parameter("5.mlp.dense_4h_to_h.weight").shape, (Shape{64, 256}));
  Synthetic{.parameters = {{"a.weight", {3, 7}}}, .dp = 8, .bf16_optimizer = true}.write(tag_);
  const SavedParameter a = open_checkpoint(tag_, 1).parameter("a.weight");
  EXPECT_EQ(floats(a.weight()), numbered(21, 0));
}

// DeepSpeed's files have the model's rounded values for second names of tied weights. Here these
// names stand for the master.
TEST_F(DeepSpeedBugs, B23_SecondNamesOfTiedWeights) {
  const Checkpoint checkpoint = open_checkpoint(tag_of("z1-bf16-dp2"), 1);
  const auto shared = checkpoint.metadata.at(keys::kSharedParams).entries();
  ASSERT_FALSE(shared.empty());
  for (const auto& [alias, name] : shared) {
    const auto bytes = [&](const Value& of) {
      const SavedParameter parameter = checkpoint.parameter(of.as_string());
      return std::pair(read_bytes(parameter.weight()), read_bytes(parameter.state(kExpAvgState)));
    };
    EXPECT_EQ(bytes(alias), bytes(name));
  }
}

// Older versions record less: no slice mappings, no degrees, and plain numbers for counts and
// stages.
TEST_F(DeepSpeedBugs, FilesOfOlderVersionsAreReadAlike) {
  Synthetic{.parameters = {{"a.weight", {3, 7}}, {"a.bias", {4}}}, .dp = 3}.write(tag_);
  change(tag_ / model_states_file(0),
         [](Value& v) { v.erase(keys::kParallelDimensions).erase(keys::kBufferNames); });
  for (int dp = 0; dp < 3; ++dp) {
    change(tag_ / optim_states_file(dp, 0, true), {keys::kOptimizerStateDict}, [](Value& v) {
      v.erase(keys::kParamSliceMappings).erase(keys::kGroupPaddings);
      v.set(keys::kPartitionCount, 3).set(keys::kZeroStage, 1);
    });
  }
  convert(tag_);
  EXPECT_EQ(values("a.weight", kExpAvgState), numbered(21, 0.25f));
  EXPECT_EQ(values("a.bias", kFp32State), numbered(4, 21));
}

// ZeRO 3 and the other stages look for the same metadata under different names, and for different
// keys of the optimizer's state. Our folder has both.
TEST_F(DeepSpeedBugs, BothFamiliesOfLoadersFindTheirMetadata) {
  for (const char* name : {"z3-fp32-dp3-frozen", "z2-bf16-dp3"}) {
    convert(tag_of(name));
    EXPECT_EQ(read_file(output_ / model_states_file(0)),
              read_file(output_ / zero3_model_states_file(0, 0)));
    EXPECT_FALSE(fs::exists(output_ / model_states_file(1)));
    const Value optimizer = optimizer_state();
    EXPECT_EQ(optimizer.at(keys::kDsVersion).as_string(), "0.19.8");
    const Value adam = optimizer.at(keys::kOptimizerStateDict).at(keys::kState).entries()[0].second;
    EXPECT_EQ(adam.at(kStepState).as_int(), 4);
  }
}

}  // namespace
}  // namespace anymesh
