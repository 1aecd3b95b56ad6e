// Folders that Megatron-Core wrote (tests/fixtures/megatron_core), beside what its ranks held.
#include <random>

#include "framework/format/dialects/distributed_optimizer.h"
#include "framework/format/dialects/foreign.h"
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

// Two weights of 64 elements, and a bucket with their masters, which begin at `first`.
DcpFolder folder_with_bucket(float first, float second) {
  std::vector<float> values(128);
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = (i < 64 ? first : second) + static_cast<float>(i % 64);
  const TensorRecord all = float_tensor({128}, values);
  DcpFolder folder{.path = "checkpoint"};
  folder.tensors = {{"a.weight", all.slice(0, {8, 8})},
                    {"b.weight", all.slice(64, {64})},
                    {"optimizer.distributed.dp_group_idx_0.gbuf_idx_0.param", all}};
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
  folder.tensors.erase("optimizer.distributed.dp_group_idx_0.gbuf_idx_0.param");
  folder.objects["optimizer.distributed.dp_group_idx_0.param_state/shard_0_1"] = {};
  EXPECT_THAT(name_distributed_states(folder), HasSubstr("dp_zero_gather_scatter"));
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
