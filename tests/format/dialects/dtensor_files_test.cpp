// Files of DTensors that torch wrote (tests/fixtures/dtensor), beside what they hold.
#include "framework/format/dialects/dtensor_files.h"

#include <random>

#include "framework/format/reshard.h"
#include "tests/support/fixtures.h"
#include "tests/tools/ckpt_support.h"

namespace anymesh {
namespace {

fs::path rank_files(const std::string& name) { return fixture("dtensor") / name; }

void expect_same(const std::string& name, const TensorRecord& tensor, const Value& truth) {
  EXPECT_EQ(tensor.shape, truth.as_tensor().shape) << name;
  EXPECT_EQ(read_bytes(tensor), read_bytes(truth.as_tensor())) << name;
}

// Returns the names of the model's tensors that are as the truth says.
std::vector<std::string> expect_weights(const std::string& name, const Checkpoint& checkpoint) {
  const Value truth = read_torch_file(fixture("dtensor") / (name + ".pt"));
  std::vector<std::string> names;
  for (const auto& [key, weight] : truth.at("model").entries()) {
    names.push_back(key.as_string());
    expect_same(names.back(), checkpoint.parameter(names.back()).weight(), weight);
    for (const auto& [state, tensor] : truth.at("state").at(names.back()).entries()) {
      const SavedParameter saved = checkpoint.parameter(names.back());
      if (!checkpoint.states_refused.empty()) {
        EXPECT_FALSE(saved.has_moments());
      } else if (state.as_string() == "step") {
        EXPECT_EQ(saved.step.as_int(), 1);
      } else {
        expect_same(names.back() + " " + state.as_string(), saved.state(state.as_string()), tensor);
      }
    }
  }
  return names;
}

TEST(DTensorFiles, HoldAModelAndItsOptimizer) {
  for (const std::string name : {"uneven", "hsdp", "tp"}) {
    const Checkpoint checkpoint = open_checkpoint(rank_files(name), /*threads=*/2);
    EXPECT_EQ(checkpoint.states_refused, "");
    EXPECT_THAT(expect_weights(name, checkpoint),
                testing::UnorderedElementsAreArray(checkpoint.names()));
    const Value groups = checkpoint.optimizer_state.at("param_groups");
    ASSERT_EQ(groups.size(), 1u);
    EXPECT_EQ(groups.at(0).at("lr").as_double(), 1e-3);
    expect_well(verify(rank_files(name)), "4 parameters");
  }
}

TEST(DTensorFiles, HaveWeightsAloneIfGroupsHaveNumbers) {
  const Checkpoint checkpoint = open_checkpoint(rank_files("groups"), /*threads=*/2);
  EXPECT_EQ(expect_weights("groups", checkpoint).size(), 4u);
  EXPECT_THAT(checkpoint.states_refused, HasSubstr("its params are numbers"));
}

class CopiedDTensorFiles : public TempFolder {
 protected:
  void copy(const std::string& name) {
    fs::remove_all(folder_);
    fs::copy(rank_files(name), folder_, fs::copy_options::recursive);
  }
};

TEST_F(CopiedDTensorFiles, GoOnInOtherFormats) {
  for (const std::string name : {"uneven", "hsdp", "tp"}) {
    const fs::path dcp = folder_ / name / "dcp", tag = folder_ / name / "global_step1";
    export_dcp({.input = rank_files(name), .output = dcp}, {});
    expect_well(diff(rank_files(name), dcp), "0 differences");
    reshard({.input = dcp, .output = tag, .target = ReshardTarget::parse("dp=3,zero=3")}, {});
    expect_well(diff(rank_files(name), tag), "0 differences");
  }
}

TEST_F(CopiedDTensorFiles, NeedAllRanks) {
  const auto refusal = [&] { return message_of([&] { open_checkpoint(folder_, 1); }); };
  copy("uneven");
  fs::rename(folder_ / "model_world_size_4_rank_2.pt", folder_ / "kept");
  EXPECT_THAT(refusal(), HasSubstr("model_world_size_4_rank_2.pt"));
  fs::copy(folder_ / "model_world_size_4_rank_1.pt", folder_ / "model_world_size_4_rank_2.pt");
  EXPECT_THAT(refusal(), HasSubstr("elements of"));
  fs::copy(folder_ / "kept", folder_ / "model_world_size_2_rank_0.pt");
  EXPECT_THAT(refusal(), HasSubstr("of 2 ranks"));
  copy("uneven");
  fs::remove(folder_ / "model_world_size_4_rank_3.pt");
  fs::copy(rank_files("hsdp") / "model_world_size_4_rank_3.pt",
           folder_ / "model_world_size_4_rank_3.pt");
  EXPECT_THAT(refusal(), HasSubstr("what rank 0 has"));
}

// Whatever the files say, a tensor that is read under its name is the right one, or is refused.
TEST_F(CopiedDTensorFiles, AFlippedBit) {
  copy("tp");
  std::map<std::string, std::vector<std::byte>> right;
  for (const auto& [name, parameter] : read_dtensor_files(folder_).parameters)
    right[name] = read_bytes(parameter.weight);
  const fs::path file = folder_ / "model_world_size_4_rank_1.pt";
  const std::string whole = read_file(file);
  std::mt19937 random(1);
  int refused = 0;
  for (int i = 0; i < 500; ++i) {
    std::string text = whole;
    text[random() % text.size()] ^= static_cast<char>(1 << random() % 8);
    write_file(file, text);
    try {
      for (const auto& [name, parameter] : read_dtensor_files(folder_).parameters) {
        const auto known = right.find(name);
        if (known != right.end()) {
          EXPECT_EQ(read_bytes(parameter.weight), known->second) << i << " " << name;
        }
      }
    } catch (const std::runtime_error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace anymesh
