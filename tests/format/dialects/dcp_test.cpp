// Folders that torch.distributed.checkpoint wrote (tests/fixtures/dcp), beside what they hold.
#include "framework/format/dialects/dcp.h"

#include <random>
#include <set>

#include "framework/format/dialects/dcp_writer.h"
#include "framework/format/dialects/torch_dist.h"
#include "framework/format/reshard.h"
#include "framework/format/sharded.h"
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
}

// The groups of the fixture's AdamW.
void expect_groups(const fs::path& folder) {
  const DcpModel model = dcp_model(read_dcp(folder));
  ASSERT_EQ(model.groups.size(), 2u) << folder;
  std::set<std::string> names;
  for (size_t g = 0; g < 2; ++g) {
    const auto& [of_group, settings] = model.groups[g];
    EXPECT_EQ(settings.at("weight_decay").as_double(), g == 0 ? 0.1 : 0.0);
    EXPECT_EQ(settings.at("betas").at(1).as_double(), 0.95);
    EXPECT_FALSE(settings.contains("params"));
    for (const std::string& name : of_group) {
      EXPECT_EQ(model.parameters.at(name).weight.shape.size() == 1, g == 1) << name;
      names.insert(name);
    }
  }
  EXPECT_EQ(names.size(), 12u) << folder;
}

TEST(Dcp, KnowsTheOptimizersGroups) {
  for (const std::string name : {"flat", "nested", "uneven", "file_per_item"})
    expect_groups(folder_of(name));
}

class WrittenDcp : public TempFolder {};

TEST_F(WrittenDcp, HoldsWhatItsSourceHolds) {
  for (const std::string name : {"flat", "nested", "uneven"}) {
    const fs::path source = folder_of(name), copy = folder_ / name;
    const DcpReport report = export_dcp({.input = source, .output = copy}, {});
    EXPECT_EQ(report.tensors, 49);
    expect_well(verify(copy), "13 parameters");
    expect_well(diff(source, copy), "0 differences");
    expect_groups(copy);
  }
}

TEST_F(WrittenDcp, GoesToDeepSpeedAndBack) {
  for (const std::string name : {"flat", "nested"}) {
    const fs::path source = folder_of(name);
    for (const std::string target : {"dp=3,zero=3", "dp=2,zero=1", "zero=0", "dp=5,zero=2"}) {
      const fs::path tag = folder_ / (name + target) / "global_step1",
                     back = folder_ / (name + target + "b");
      reshard({.input = source, .output = tag, .target = ReshardTarget::parse(target)}, {});
      expect_well(verify(tag));
      expect_well(diff(source, tag), "0 differences");
      if (target == "zero=0") continue;  // which does not record whose the states are
      export_dcp({.input = tag, .output = back}, {});
      expect_well(diff(source, back), "0 differences");
      expect_groups(back);
    }
    convert_to_universal({.input = source, .output = folder_ / (name + "_universal")}, {});
    expect_well(diff(source, folder_ / (name + "_universal")), "0 differences");
  }
}

TEST_F(WrittenDcp, CutsALargeTensor) {
  constexpr int64_t kWidth = 4 << 20;
  std::vector<std::byte> row(kWidth * sizeof(float));
  std::vector<ShardFragment> rows;
  for (int64_t i = 0; i < 5; ++i) {
    row[0] = static_cast<std::byte>(i);
    rows.push_back({0, i * kWidth, kWidth, std::make_shared<OwnedBytes>(row)});
  }
  const Shape shape{5, kWidth};
  const TensorRecord large{DType::kFloat32, shape, false, joined(shape, rows, DType::kFloat32)};
  fs::create_directories(folder_);
  write_files(dcp_files(folder_, {{{"model", "w"}, large},
                                  {{"model", "empty"},
                                   TensorRecord{DType::kFloat32, {0, 3}, false, zeros(0)}}}),
              2);
  const DcpFolder folder = read_dcp(folder_);
  EXPECT_EQ(folder.items.size(), 3u);
  expect_equal("w", folder.tensors.at("model.w"), large);
  EXPECT_EQ(folder.tensors.at("model.empty").shape, (Shape{0, 3}));
}

TEST_F(WrittenDcp, ReplacesOnlyItsOwn) {
  const fs::path out = folder_ / "out";
  export_dcp({.input = folder_of("flat"), .output = out}, {});
  export_dcp({.input = folder_of("nested"), .output = out, .model_key = "weights"}, {});
  EXPECT_EQ(read_dcp(out).keys.count("weights.embed.weight"), 1u);
  write_file(out / "notes.txt", "mine");
  EXPECT_THAT(message_of([&] { export_dcp({.input = folder_of("flat"), .output = out}, {}); }),
              HasSubstr("notes.txt"));
  fs::copy(folder_of("flat"), folder_ / "theirs", fs::copy_options::recursive);
  EXPECT_THAT(message_of([&] { export_dcp({.input = out, .output = folder_ / "theirs"}, {}); }),
              HasSubstr("theirs"));
  EXPECT_THAT(message_of([&] { export_dcp({.input = out, .output = out / "in"}, {}); }),
              HasSubstr("out"));
}

// A model of Megatron-Core's names, its states, and the settings of two groups.
DcpModel megatron_model(int64_t layers) {
  DcpModel model;
  int seed = 0;
  const auto add = [&](const std::string& name, const Shape& shape) {
    DcpModel::Parameter& parameter = model.parameters[name];
    const auto tensor = [&] {
      std::vector<float> values(static_cast<size_t>(numel(shape)));
      for (float& value : values) value = static_cast<float>(++seed);
      const auto bytes = std::as_bytes(std::span(values));
      return TensorRecord{DType::kFloat32, shape, false,
                          std::make_shared<OwnedBytes>(std::vector(bytes.begin(), bytes.end()))};
    };
    parameter.weight = tensor();
    parameter.states = {{"exp_avg", tensor()}, {"exp_avg_sq", tensor()}};
    parameter.states["step"] = {DType::kFloat32, {}, false, zeros(4)};
    model.order.push_back(name);
  };
  add("embedding.word_embeddings.weight", {6, 4});
  for (int64_t i = 0; i < layers; ++i) {
    const std::string layer = "decoder.layers." + std::to_string(i) + ".";
    add(layer + "self_attention.linear_qkv.layer_norm_weight", {4});
    add(layer + "self_attention.linear_qkv.weight", {12, 4});
  }
  add("decoder.final_layernorm.weight", {4});
  model.groups.resize(2);
  for (const std::string& name : model.order)
    model.groups[model.parameters.at(name).weight.shape.size() == 1].names.push_back(name);
  model.groups[0].settings = Value::dict({{"lr", 0.5}, {"weight_decay", 0.1}});
  model.groups[1].settings = Value::dict({{"lr", 0.5}, {"weight_decay", 0.0}});
  return model;
}

using TorchDist = WrittenDcp;

TEST_F(TorchDist, StacksLayers) {
  const DcpModel model = megatron_model(11);  // more than one digit
  write_files(torch_dist_files(folder_, model, 7), 2);
  const DcpFolder folder = read_dcp(folder_);
  EXPECT_EQ(folder.tensors.at("decoder.layers.self_attention.linear_qkv.weight").shape,
            (Shape{11, 12, 4}));
  EXPECT_TRUE(
      folder.objects.contains("decoder.layers.self_attention.linear_qkv._extra_state/shard_10_11"));
  const Checkpoint checkpoint = open_checkpoint(folder_, 2);
  EXPECT_EQ(checkpoint.description, "torch_dist of Megatron-Core");
  EXPECT_EQ(checkpoint.names().size(), model.order.size());
  for (const auto& [name, parameter] : model.parameters) {
    const SavedParameter saved = checkpoint.parameter(name);
    expect_equal(name, saved.weight(), parameter.weight);
    expect_equal(name, saved.state("exp_avg_sq"), parameter.states.at("exp_avg_sq"));
    EXPECT_EQ(saved.step.as_int(), 0);
  }
  const Value groups = checkpoint.optimizer_state.at("param_groups");
  EXPECT_EQ(groups.at(1).at("wd_mult").as_double(), 0.0);
  EXPECT_EQ(checkpoint.metadata.at("param_shapes").at(0).size(), 12u);
  EXPECT_EQ(checkpoint.metadata.at("param_shapes").at(1).size(), 12u);
}

TEST_F(TorchDist, RefusesLayersThatDiffer) {
  DcpModel model = megatron_model(2);
  model.parameters["decoder.layers.1.self_attention.linear_qkv.weight"].weight.shape = {4, 12};
  EXPECT_THAT(message_of([&] { torch_dist_files(folder_, model, 7); }),
              HasSubstr("torch_dist stacks"));
  model = megatron_model(2);
  std::erase(model.order, "decoder.layers.0.self_attention.linear_qkv.weight");
  EXPECT_THAT(message_of([&] { torch_dist_files(folder_, model, 7); }), HasSubstr("must be alike"));
}

TEST_F(TorchDist, AFlippedBitOfItsFiles) {
  write_files(torch_dist_files(folder_, megatron_model(3), 7), 2);
  std::mt19937 random(2);
  int refused = 0;
  for (const std::string file : {"common.pt", ".metadata"}) {
    const std::string whole = read_file(folder_ / file);
    for (int i = 0; i < 100; ++i) {
      std::string text = whole;
      text[random() % text.size()] ^= static_cast<char>(1 << random() % 8);
      write_file(folder_ / file, text);
      try {
        open_checkpoint(folder_, 1);
      } catch (const std::runtime_error&) {
        ++refused;
      }
    }
    write_file(folder_ / file, whole);
  }
  EXPECT_GT(refused, 40);
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
      if (i % 10 == 0) dcp_model(read_dcp(folder_));  // which opens many items
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
