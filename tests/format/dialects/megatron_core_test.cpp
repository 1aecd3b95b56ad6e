// Folders that Megatron-Core wrote (tests/fixtures/megatron_core), beside what its ranks held.
#include <random>

#include "framework/format/dialects/distributed_optimizer.h"
#include "framework/format/dialects/foreign.h"
#include "framework/format/dialects/megatron_fsdp.h"
#include "framework/format/sharded.h"
#include "tests/support/fixtures.h"
#include "tests/tools/ckpt_support.h"

namespace anymesh {
namespace {

const std::vector<std::string> kForms = {"fully_reshardable", "flat", "buckets", "fsdp"};
fs::path saved_by_megatron(const std::string& name) {
  return fixture("megatron_core") / name / "checkpoint";
}
Value held_by_megatron(const std::string& name) {
  return read_torch_file(fixture("megatron_core") / name / "truth.pt");
}

TEST(MegatronCore, HoldsTheStatesOfTheDistributedOptimizer) {
  for (const std::string& form : kForms) {
    const Checkpoint checkpoint = open_checkpoint(saved_by_megatron(form), /*threads=*/2);
    ASSERT_EQ(checkpoint.states_refused, "") << form;
    EXPECT_EQ(checkpoint.names().size(), 15u);
    int compared = 0;
    for (const auto& [key, value] : held_by_megatron(form).entries()) {  // "name state"
      const std::string& text = key.as_string();
      const std::string name = text.substr(0, text.find(' ')), state = text.substr(name.size() + 1);
      const SavedParameter saved = checkpoint.parameter(name);
      if (state == kStepState) {
        EXPECT_EQ(saved.step.as_int(), 3) << form << " " << text;
      } else {
        const TensorRecord tensor = state == kFp32State ? saved.weight() : saved.state(state);
        EXPECT_EQ(tensor.shape, value.as_tensor().shape) << form << " " << text;
        EXPECT_EQ(read_bytes(tensor), read_bytes(value.as_tensor())) << form << " " << text;
      }
      ++compared;
    }
    EXPECT_EQ(compared, 60) << form;
  }
}

TEST(MegatronCore, KnowsTheGroups) {
  for (const std::string& form : kForms) {
    const DcpModel model = read_foreign(saved_by_megatron(form)).model;
    ASSERT_EQ(model.groups.size(), 2u) << form;
    for (const bool vectors : {false, true}) {
      const DcpModel::Group& group = model.groups[vectors];
      EXPECT_EQ(group.names.size(), vectors ? 5u : 10u) << form;
      EXPECT_EQ(group.settings.at("weight_decay").as_double(), vectors ? 0.0 : 0.1) << form;
      EXPECT_FALSE(group.settings.contains("step")) << form;
      for (const std::string& name : group.names)
        EXPECT_EQ(model.parameters.at(name).weight.shape.size() == 1, vectors) << name;
    }
  }
}

TEST(MegatronCore, HasWeightsAloneWhereItHasShiftedTheStates) {
  const Checkpoint checkpoint = open_checkpoint(saved_by_megatron("shifted"), 2);
  EXPECT_THAT(checkpoint.states_refused, HasSubstr("shifts it"));
  for (const auto& [key, value] : held_by_megatron("shifted").entries()) {
    const std::string& text = key.as_string();
    if (!text.ends_with(" fp32")) continue;
    const SavedParameter saved = checkpoint.parameter(text.substr(0, text.find(' ')));
    EXPECT_EQ(read_bytes(saved.weight()), read_bytes(value.as_tensor())) << text;
    EXPECT_FALSE(saved.has_moments());
  }
}

const std::string kBucket = "optimizer.distributed.dp_group_idx_0.gbuf_idx_0.";

// Two weights of 64 elements, and a bucket with their masters, which begin at `first`.
DcpFolder folder_with_bucket(float first, float second) {
  std::vector<float> values(128);
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = (i < 64 ? first : second) + static_cast<float>(i % 64);
  const TensorRecord all = float_tensor({128}, values);
  DcpFolder folder{.path = "checkpoint"};
  folder.tensors = {{"a.weight", all.slice(0, {8, 8})},
                    {"b.weight", all.slice(64, {64})},
                    {kBucket + "param", all}};
  return folder;
}

TEST(MegatronCore, KnowsParametersInABucketByTheirWeights) {
  DcpFolder folder = folder_with_bucket(0, 1000);
  EXPECT_EQ(name_distributed_states(folder), "");
  EXPECT_EQ(folder.tensors.size(), 4u);
  EXPECT_EQ(folder.tensors.at("optimizer.state.param.a.weight").shape, (Shape{8, 8}));
  EXPECT_EQ(floats(folder.tensors.at("optimizer.state.param.b.weight"))[1], 1001);
}

TEST(MegatronCore, SkipsThePaddingOfABucket) {
  DcpFolder folder = folder_with_bucket(0, 1000);
  folder.tensors["b.weight"] = folder.tensors.at("b.weight").slice(0, {50});
  EXPECT_EQ(name_distributed_states(folder), "");
  EXPECT_EQ(folder.tensors.at("optimizer.state.param.b.weight").shape, (Shape{50}));
}

TEST(MegatronCore, RefusesABucketOfWeightsThatAreAlike) {
  DcpFolder folder = folder_with_bucket(5, 5);
  EXPECT_THAT(name_distributed_states(folder),
              HasSubstr("a.weight at [0, 0] and b.weight at [0] have the same"));
  EXPECT_EQ(folder.tensors.size(), 2u);
}

TEST(MegatronCore, RefusesABucketOfOtherMasters) {
  DcpFolder folder = folder_with_bucket(0, 1000);
  folder.tensors["b.weight"] = folder_with_bucket(0, 1001).tensors.at("b.weight");
  EXPECT_THAT(name_distributed_states(folder), HasSubstr("from element 64 on"));
  EXPECT_EQ(folder.tensors.size(), 2u);
}

TEST(MegatronCore, RefusesObjectsInPlaceOfTensors) {
  DcpFolder folder = folder_with_bucket(0, 1000);
  folder.tensors.erase(kBucket + "param");
  folder.objects["optimizer.distributed.dp_group_idx_0.param_state/shard_0_1"] = {};
  EXPECT_THAT(name_distributed_states(folder), HasSubstr("dp_zero_gather_scatter"));
}

TEST(MegatronCore, TakesNoPaddingForAWeight) {
  std::vector<float> values(192), moments(192, 7);
  for (size_t i = 0; i < 64; ++i)
    values[i] = static_cast<float>(i + 1);  // padding from 16 on: zeros
  std::fill(values.begin() + 16, values.begin() + 64, 0.0f);
  std::fill(values.begin() + 128, values.end(), 2.0f);
  std::fill(moments.begin() + 16, moments.begin() + 64, 0.0f);
  const TensorRecord masters = float_tensor({192}, values);
  DcpFolder folder{.path = "checkpoint"};
  folder.tensors = {{"a.weight", masters.slice(0, {16})},
                    {"b.bias", masters.slice(64, {48})},
                    {"c.weight", masters.slice(128, {64})},
                    {kBucket + "param", masters},
                    {kBucket + "exp_avg", float_tensor({192}, moments)}};
  EXPECT_EQ(name_distributed_states(folder), "");
  EXPECT_EQ(floats(folder.tensors.at("optimizer.state.exp_avg.b.bias"))[0], 7);
}

TEST(MegatronCore, ComparesTheStatesOfAWeightThatIsInTwoBuckets) {
  for (const float other : {7.0f, 8.0f}) {
    DcpFolder folder = folder_with_bucket(0, 1000);
    const std::string second = "optimizer.distributed.dp_group_idx_1.gbuf_idx_0.";
    folder.tensors[kBucket + "exp_avg"] = float_tensor({128}, std::vector<float>(128, 7));
    folder.tensors[second + "param"] = folder.tensors.at("a.weight").slice(0, {64});
    folder.tensors[second + "exp_avg"] = float_tensor({64}, std::vector<float>(64, other));
    const std::string refused = name_distributed_states(folder);
    if (other == 7)
      EXPECT_EQ(refused, "");
    else
      EXPECT_THAT(refused, HasSubstr("a.weight at [0, 0] has two states exp_avg that differ"));
  }
}

TEST(MegatronCore, RefusesABucketOfTooManyComparisons) {
  DcpFolder folder{.path = "checkpoint"};
  const std::vector<float> values(2000 * 128);
  folder.tensors[kBucket + "param"] = float_tensor({std::ssize(values)}, values);
  std::vector<float> weight(65);
  for (int i = 0; i < 1000; ++i) {
    weight[64] = static_cast<float>(i);  // the first is in all places, others only begin alike
    folder.tensors[std::to_string(i)] = float_tensor({65}, weight);
  }
  EXPECT_THAT(name_distributed_states(folder), HasSubstr("more weights that begin alike"));
}

TEST(MegatronCore, RefusesAStateOfTooManyParts) {
  DcpFolder folder{.path = "checkpoint"};
  folder.tensors = {
      {"a", float_tensor({1 << 15}, std::vector<float>(1 << 15))},
      {"optimizer.state.exp_avg.a", float_tensor({1 << 15, 1}, std::vector<float>(1 << 15))}};
  EXPECT_THAT(name_distributed_states(folder), HasSubstr("exp_avg.a: is cut into more parts"));
  EXPECT_EQ(folder.tensors.size(), 1u);
}

const std::string kLayer = "model.module.decoder.layers.0.";

std::string refused_fsdp(const std::map<std::string, Shape>& shapes) {
  DcpFolder folder{.path = "checkpoint"};
  for (const auto& [name, shape] : shapes) {
    folder.tensors[name] = float_tensor(shape, std::vector<float>(16));
    folder.order.push_back(name);
  }
  return message_of([&] {
    if (is_megatron_fsdp(folder)) megatron_fsdp_model(folder);
  });
}

TEST(MegatronFsdp, RefusesHalvesThatDoNotFit) {
  const std::string w = kLayer + "mlp.linear_fc1.weight_w", v = kLayer + "mlp.linear_fc1.weight_v";
  EXPECT_EQ(refused_fsdp({{w, {4, 4}}, {v, {4, 4}}}), "");
  EXPECT_THAT(refused_fsdp({{w, {4, 4}}, {v, {2, 8}}}), HasSubstr("weight_v like"));
  EXPECT_THAT(refused_fsdp({{w, {4, 4}}}), HasSubstr("weight_v like"));
  EXPECT_THAT(refused_fsdp({{v, {4, 4}}}), HasSubstr("weight_w like"));
  const Shape large = {int64_t{1} << 62, 0};
  EXPECT_THAT(refused_fsdp({{w, large}, {v, large}}), HasSubstr("has a half of shape"));
}

TEST(MegatronFsdp, KnowsNamesThatChange) {
  const std::string norm = kLayer + "a.input_layernorm.linear_fc1.x";
  EXPECT_EQ(refused_fsdp({{norm + "_w", {4, 4}}, {norm + "_v", {4, 4}}}), "");
  std::string name = kLayer;
  while (name.size() < 1 << 24) name += "module.";
  EXPECT_THAT(refused_fsdp({{name, {4, 4}}}), HasSubstr("is longer than 4096 bytes"));
}

TEST(Dcp, TakesMastersOfItsWeightsShape) {
  for (const std::string prefix : {"optimizer.", "optim."})
    for (const Shape& shape : {Shape{4}, Shape{2, 2}}) {
      DcpFolder folder{.path = "checkpoint"};
      const std::string state = prefix + "state.a.param", group = prefix + "param_groups.a.lr";
      folder.tensors = {{"a", float_tensor({4}, {1, 1, 1, 1})},
                        {state, float_tensor(shape, {2, 2, 2, 2})},
                        {group, float_tensor({}, {1})}};
      for (const auto& [name, tensor] : folder.tensors) {
        folder.order.push_back(name);
        folder.keys[name] = {name};
      }
      const auto weight = [&] { return floats(dcp_model(folder).parameters.at("a").weight)[0]; };
      if (prefix == "optimizer." && shape.size() == 2)
        EXPECT_THAT(message_of(weight), HasSubstr("has shape [2, 2], and its weight [4]"));
      else
        EXPECT_EQ(weight(), prefix == "optimizer." ? 2 : 1) << prefix;
    }
}

// Whatever .metadata says, a tensor that is read under its name is the right one, or is refused.
class DamagedMegatronCore : public TempFolder {};
TEST_F(DamagedMegatronCore, AFlippedBitOfMetadata) {
  for (const std::string& form : kForms) {
    std::map<std::string, std::vector<std::byte>> right;
    for (const auto& [key, value] : held_by_megatron(form).entries())
      if (!key.as_string().ends_with(" step"))
        right[key.as_string()] = read_bytes(value.as_tensor());
    const fs::path folder = folder_ / form;
    fs::copy(saved_by_megatron(form), folder, fs::copy_options::recursive);
    const std::string whole = read_file(folder / ".metadata");
    std::mt19937 random(3);
    int refused = 0;
    for (int i = 0; i < 60; ++i) {
      std::string text = whole;
      text[random() % text.size()] ^= static_cast<char>(1 << random() % 8);
      write_file(folder / ".metadata", text);
      try {
        for (const auto& [name, parameter] : read_foreign(folder).model.parameters)
          for (const auto& [state, tensor] : parameter.states)
            if (const auto known = right.find(name + " " + state); known != right.end()) {
              EXPECT_EQ(read_bytes(tensor), known->second) << form << i << " " << name << state;
            }
      } catch (const std::runtime_error&) {
        ++refused;
      }
    }
    EXPECT_GT(refused, 10) << form;
  }
}

}  // namespace
}  // namespace anymesh
