// Folders that torch.distributed.checkpoint wrote (tests/fixtures/dcp), beside what they hold.
#include "framework/format/dialects/dcp.h"

#include <random>

#include "framework/format/reshard.h"
#include "tests/support/fixtures.h"
#include "tests/tools/ckpt_support.h"

namespace anymesh {
namespace {

fs::path folder_of(const std::string& name) { return fixture("dcp") / name / "checkpoint"; }
Value truth_of(const std::string& name) {
  return read_torch_file(fixture("dcp") / name / "truth.pt");
}

void expect_equal(const std::string& name, const TensorRecord& tensor, const TensorRecord& truth) {
  EXPECT_EQ(tensor.dtype, truth.dtype) << name;
  EXPECT_EQ(tensor.shape, truth.shape) << name;
  EXPECT_EQ(read_bytes(tensor), read_bytes(truth)) << name;
}

TEST(Dcp, HoldsFsdp2sModelAndOptimizer) {
  for (const std::string name : {"flat", "nested", "uneven", "file_per_item"}) {
    const Checkpoint checkpoint = open_checkpoint(folder_of(name), /*threads=*/2);
    const Value truth = truth_of(name), states = truth.at("optim");
    const auto weights = truth.at("model").entries();
    EXPECT_EQ(checkpoint.names().size(), weights.size());
    int trained = 0;
    for (const auto& [key, weight] : weights) {
      const std::string& parameter = key.as_string();
      const SavedParameter saved = checkpoint.parameter(parameter);
      expect_equal(parameter, saved.weight(), weight.as_tensor());
      const auto state_of = [&](const std::string& state) {
        if (name != "nested") return states.find("state." + parameter + "." + state);
        const Value own = states.at("state").find(parameter);
        return own ? own.at(state) : Value();
      };
      const Value step = state_of("step");
      EXPECT_EQ(saved.has_moments(), !step.is_none());
      if (!step) continue;  // a buffer
      EXPECT_EQ(saved.step.as_int(), step.as_int());
      for (const std::string state : {"exp_avg", "exp_avg_sq"})
        expect_equal(parameter + " " + state, saved.state(state), state_of(state).as_tensor());
      ++trained;
    }
    EXPECT_EQ(trained, 12) << name;
  }
}

TEST(Dcp, HoldsBoxesOfAllTypes) {
  const DcpFolder folder = read_dcp(folder_of("mesh12"));
  int tensors = 0;
  for (const auto& [key, value] : truth_of("mesh12").entries()) {
    if (!value.is_tensor()) continue;
    expect_equal(key.as_string(), folder.tensors.at(key.as_string()), value.as_tensor());
    ++tensors;
  }
  EXPECT_EQ(tensors, 9);
  EXPECT_EQ(folder.tensors.size(), 9u);
  EXPECT_EQ(read_torch_file(folder.objects.at("cfg.x").open()).at(1).as_int(), 2);
  EXPECT_TRUE(read_torch_file(folder.objects.at("none").open()).is_none());
}

TEST(Dcp, IsACheckpointForTheTools) {
  const fs::path flat = folder_of("flat");
  const Outcome verified = verify(flat);
  EXPECT_EQ(verified.code, 0) << verified.text;
  EXPECT_TRUE(verified.says("13 parameters")) << verified.text;
  EXPECT_TRUE(inspect(flat).says("embed.weight          float32 [8, 4]")) << inspect(flat).text;
  EXPECT_EQ(diff(flat, folder_of("nested")).code, 0) << diff(flat, folder_of("nested")).text;
  EXPECT_EQ(diff(flat, folder_of("file_per_item")).code, 0);
  EXPECT_THAT(message_of([&] {
                reshard({.input = flat,
                         .output = fs::temp_directory_path() / "unused",
                         .target = ReshardTarget::parse("dp=3")},
                        {});
              }),
              HasSubstr("is of torch.distributed.checkpoint, expected a checkpoint of DeepSpeed"));
}

class DamagedDcp : public TempFolder {
 protected:
  DamagedDcp() { fs::copy(folder_of("flat"), folder_, fs::copy_options::recursive); }
  std::string refusal() {
    return message_of([&] {
      for (const auto& [name, tensor] : read_dcp(folder_).tensors) read_bytes(tensor);
    });
  }
};

TEST_F(DamagedDcp, AFlippedByteOfATensor) {
  const fs::path file = folder_ / "__1_0.distcp";
  const std::string whole = read_file(file);
  int damaged = 0;
  for (size_t at = 0; at < whole.size(); at += 997) {
    std::string text = whole;
    text[at] = static_cast<char>(text[at] ^ 4);
    write_file(file, text);
    const std::string error = refusal();
    damaged += !error.empty();
    if (!error.empty()) {
      EXPECT_THAT(error, HasSubstr("__1_0")) << at;
    }
  }
  EXPECT_GT(damaged, 5);  // the others lie in padding, or in fields that nobody reads
  write_file(file, whole.substr(0, whole.size() - 1));
  EXPECT_THAT(refusal(), HasSubstr("__1_0.distcp: has "));
  fs::remove(file);
  EXPECT_THAT(refusal(), HasSubstr("__1_0.distcp"));
}

// Whatever .metadata says, a tensor that is read under its name is the right one, or is refused.
TEST_F(DamagedDcp, AFlippedBitOfMetadata) {
  const Value truth = truth_of("flat");
  std::map<std::string, std::vector<std::byte>> right;
  for (const auto& [name, tensor] : read_dcp(folder_).tensors) right[name] = read_bytes(tensor);
  const std::string whole = read_file(folder_ / ".metadata");
  std::mt19937 random(1);
  int refused = 0;
  for (int i = 0; i < 500; ++i) {
    std::string text = whole;
    text[random() % text.size()] ^= static_cast<char>(1 << random() % 8);
    write_file(folder_ / ".metadata", text);
    try {
      for (const auto& [name, tensor] : read_dcp(folder_).tensors) {
        const auto known = right.find(name);
        if (known != right.end()) {
          EXPECT_EQ(read_bytes(tensor), known->second) << i << " " << name;
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
