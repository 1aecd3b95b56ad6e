#include "framework/checkpoint/load/fp32.h"

#include <torch/nn/module.h>

#include <map>

#include "framework/checkpoint/torch_bridge.h"
#include "tests/support/fixtures.h"

namespace anymesh {
namespace {

// Returns every tensor of a folder's pytorch_model.bin, by name.
std::map<std::string, torch::Tensor> exported(const fs::path& folder) {
  std::map<std::string, torch::Tensor> out;
  for (const auto& [name, value] : read_torch_file(folder / "pytorch_model.bin").entries())
    out[name.as_string()] = Fp32Tensor(name.as_string(), value.as_tensor()).contiguous();
  return out;
}

class Fp32 : public TempFolder {};

// Compares with the export of DeepSpeed's script.
TEST_F(Fp32, StateDictsAreDeepSpeeds) {
  for (const char* name : {"z2-bf16-dp3", "z3-fp32-dp3-frozen"}) {
    const auto theirs = exported(fixture(name) / "fp32");
    for (const bool lazy : {false, true}) {
      for (const char* source : {"checkpoint", "universal"}) {
        const Fp32StateDict ours = get_fp32_state_dict_from_zero_checkpoint(
            fixture(name) / source, "", /*exclude_frozen_parameters=*/false, lazy);
        ASSERT_EQ(ours.size(), theirs.size());
        for (const auto& [key, weight] : ours.pairs()) {
          EXPECT_EQ(weight.sizes(), theirs.at(key).sizes()) << key;
          EXPECT_EQ(weight.dtype(), torch::kFloat) << key;
          EXPECT_TRUE(torch::equal(weight.contiguous(), theirs.at(key))) << key;
        }
      }
    }
  }
}

TEST_F(Fp32, EveryStageAndMeshHasAStateDict) {
  const std::pair<const char*, size_t> cases[] = {
      {"z0-fp32-dp2/checkpoint", 30},           {"z1-bf16-dp2/checkpoint", 30},
      {"z3-bf16-dp2/checkpoint", 30},           {"z1-bf16-tp2pp2dp1/checkpoint", 52},
      {"z1-fp32-tp2pp2dp1/universal", 52},      {"z0-fp32-tp2dp2/checkpoint", 52},
      {"z2-bf16-tp2dp2-nopipe/checkpoint", 52}, {"z3-bf16-dp2-nopipe/checkpoint", 52}};
  for (const auto& [path, count] : cases) {
    const Fp32StateDict weights =
        get_fp32_state_dict_from_zero_checkpoint(fs::path(ANYMESH_UNPACKED) / path);
    EXPECT_EQ(weights.size(), count) << path;
    for (const auto& [name, weight] : weights.pairs()) {
      EXPECT_EQ(weight.contiguous().sizes(), weight.sizes()) << path << ": " << name;
      EXPECT_TRUE(weight.contiguous().isfinite().all().item<bool>()) << path << ": " << name;
    }
  }
}

TEST_F(Fp32, DefaultsAreDeepSpeeds) {
  const fs::path checkpoint = fixture("z3-fp32-dp3-frozen") / "checkpoint";
  const Fp32StateDict weights = get_fp32_state_dict_from_zero_checkpoint(checkpoint);
  EXPECT_TRUE(weights.contains("h.0.attn.weight")) << "frozen";
  const torch::Tensor first = weights["scale"].contiguous();
  EXPECT_TRUE(first.is_same(weights["scale"].contiguous())) << "not lazy";
  const std::string tag = read_file(checkpoint / "latest");
  const Fp32StateDict trained =
      get_fp32_state_dict_from_zero_checkpoint(checkpoint, tag, /*exclude_frozen_parameters=*/true);
  EXPECT_FALSE(trained.contains("h.0.attn.weight"));
  EXPECT_TRUE(trained.contains("h.1.attn.weight"));
  EXPECT_TRUE(trained.contains("scale"));
  EXPECT_REFUSES(get_fp32_state_dict_from_zero_checkpoint(checkpoint, "global_step7"),
                 "holds: " + tag);
}

TEST_F(Fp32, TiedWeightsAreOneTensor) {
  for (const char* source : {"checkpoint", "universal"}) {
    const fs::path folder = fixture("z1-bf16-dp2") / source;
    const Fp32StateDict weights = get_fp32_state_dict_from_zero_checkpoint(folder);
    EXPECT_TRUE(
        weights["head.weight"].contiguous().is_alias_of(weights["wte.weight"].contiguous()));
    const Fp32StateDict lazy =
        get_fp32_state_dict_from_zero_checkpoint(folder, "", false, /*lazy_mode=*/true);
    EXPECT_TRUE(lazy["head.weight"].is_alias_of(lazy["wte.weight"]));
    EXPECT_FALSE(lazy["head.weight"].is_alias_of(lazy["wpe.weight"]));
    EXPECT_FALSE(lazy["wpe.weight"].contiguous().is_alias_of(lazy["wpe.weight"].contiguous()));
  }
}

// Returns a module with parameters of these names, and `buffer`.
std::shared_ptr<torch::nn::Module> module_like(const Fp32StateDict& weights,
                                               const std::string& buffer, torch::Dtype dtype) {
  auto model = std::make_shared<torch::nn::Module>();
  for (const auto& [name, weight] : weights.pairs()) {
    torch::nn::Module* module = model.get();
    std::string rest = name;
    for (size_t dot; (dot = rest.find('.')) != std::string::npos; rest.erase(0, dot + 1)) {
      const std::string part = rest.substr(0, dot);
      const auto children = module->named_children();
      module = children.contains(part)
                   ? children[part].get()
                   : module->register_module(part, std::make_shared<torch::nn::Module>()).get();
    }
    const torch::Tensor value = torch::zeros(weight.sizes(), dtype);
    if (name == buffer) {
      module->register_buffer(rest, value);
    } else {
      module->register_parameter(rest, value);
    }
  }
  return model;
}

TEST_F(Fp32, LoadsAnyModule) {
  const fs::path checkpoint = fixture("z3-fp32-dp3-frozen") / "checkpoint";
  const Fp32StateDict weights = get_fp32_state_dict_from_zero_checkpoint(checkpoint);
  for (const torch::Dtype dtype : {torch::kFloat, torch::kBFloat16}) {
    const auto model = module_like(weights, "scale", dtype);
    load_state_dict_from_zero_checkpoint(*model, checkpoint);
    EXPECT_EQ(model->named_buffers().size(), 1u);
    EXPECT_EQ(model->named_parameters().size(), weights.size() - 1);
    for (const auto& [name, parameter] : model->named_parameters().pairs()) {
      EXPECT_TRUE(torch::equal(parameter, weights[name].contiguous().to(dtype))) << name;
      EXPECT_TRUE(parameter.requires_grad());
    }
    EXPECT_TRUE(
        torch::equal(model->named_buffers()["scale"], weights["scale"].contiguous().to(dtype)));
  }
}

TEST_F(Fp32, SaysAllThatDoesNotFitAModule) {
  const fs::path checkpoint = fixture("z1-bf16-dp2") / "checkpoint";
  const auto model = std::make_shared<torch::nn::Module>();
  const torch::Tensor untouched = model->register_parameter("scale", torch::zeros({3}));
  const auto wpe = model->register_module("wpe", std::make_shared<torch::nn::Module>());
  wpe->register_parameter("weight", torch::zeros({2, 2}));
  model->register_parameter("extra", torch::zeros({1}));
  const std::string message =
      message_of([&] { load_state_dict_from_zero_checkpoint(*model, checkpoint); });
  EXPECT_THAT(message, HasSubstr("\n  extra: not in the checkpoint"));
  EXPECT_THAT(message, HasSubstr("in the checkpoint, [2, 2] in the model"));
  EXPECT_THAT(message, HasSubstr("\n  head.weight: not in the model"));
  EXPECT_THAT(message, HasSubstr("\n  wte.weight: not in the model"));
  EXPECT_FALSE(untouched.any().item<bool>());
}

TEST_F(Fp32, ConvertsAsTheProgramDoes) {
  const fs::path checkpoint = fixture("z3-fp32-dp3-frozen") / "checkpoint";
  convert_zero_checkpoint_to_fp32_state_dict(checkpoint, folder_);
  const auto all = exported(folder_), theirs = exported(checkpoint.parent_path() / "fp32");
  ASSERT_EQ(all.size(), theirs.size());
  for (const auto& [name, tensor] : theirs) EXPECT_TRUE(torch::equal(all.at(name), tensor)) << name;
  const auto convert = [&](const std::string& size, bool safetensors, bool exclude_frozen) {
    return convert_zero_checkpoint_to_fp32_state_dict(
        checkpoint, safetensors ? folder_ / "safe" : folder_, size, safetensors,
        read_file(checkpoint / "latest"), exclude_frozen);
  };
  EXPECT_EQ(convert("", true, false).files[0].name, "model.safetensors");
  const Fp32Report parts = convert("20KB", true, false);
  EXPECT_EQ(parts.files[0].name,
            "model-00001-of-0000" + std::to_string(parts.files.size()) + ".safetensors");
  EXPECT_TRUE(fs::exists(folder_ / "safe" / "model.safetensors.index.json"));
  EXPECT_LT(convert("5GB", false, true).tensors, static_cast<int64_t>(all.size()));
  EXPECT_REFUSES(convert("5 bytes", false, false), "is not a size");
}

// Files of weights have torch's rounding (fp32_export_test.cpp).
TEST_F(Fp32, TakesADtype) {
  const fs::path checkpoint = fixture("z3-fp32-dp3-frozen") / "checkpoint";
  for (const auto& [dtype, expected] :
       {std::pair(torch::kBFloat16, DType::kBFloat16), std::pair(torch::kHalf, DType::kFloat16)}) {
    const fs::path output = folder_ / torch::toString(dtype);
    const Fp32Report report =
        convert_zero_checkpoint_to_state_dict(checkpoint, output, dtype, "10KB", true);
    EXPECT_GT(report.files.size(), 1u);
    for (const auto& [name, tensor] : read_safetensors(output / report.files[0].name))
      EXPECT_EQ(tensor.dtype, expected) << name;
  }
  EXPECT_REFUSES(convert_zero_checkpoint_to_state_dict(checkpoint, folder_, torch::kDouble),
                 "expected dtype float32, float16 or bfloat16, got Double");
}

// ---- clone_tensors_for_torch_save

TEST_F(Fp32, ClonesAViewAlone) {
  const torch::Tensor big = torch::arange(1 << 20, torch::kFloat).requires_grad_();
  const torch::Tensor view = big.view({1024, 1024}).t().narrow(0, 5, 2);
  const torch::Tensor copy = clone_tensors_for_torch_save(view).toTensor();
  EXPECT_EQ(copy.storage().nbytes(), view.nbytes());
  EXPECT_TRUE(copy.is_contiguous() && copy.device().is_cpu() && !copy.requires_grad());
  EXPECT_TRUE(torch::equal(copy, view));
  EXPECT_FALSE(copy.is_alias_of(big));
  EXPECT_TRUE(clone_tensors_for_torch_save(view, torch::kMeta).toTensor().is_meta());
}

TEST_F(Fp32, ClonesInsideContainers) {
  const torch::Tensor a = torch::ones({2}), b = torch::zeros({3});
  c10::impl::GenericDict dict(c10::StringType::get(), c10::AnyType::get());
  dict.insert("list", c10::List<torch::Tensor>({a, b}));
  dict.insert("tuple", c10::ivalue::Tuple::create({a, c10::IValue(7)}));
  dict.insert("none", c10::IValue());
  const auto copy = clone_tensors_for_torch_save(dict).toGenericDict();
  a.fill_(9);
  EXPECT_EQ(copy.at("list").toTensorVector()[0].sum().item<float>(), 2);
  EXPECT_TRUE(copy.at("list").toTensorVector()[1].equal(b));
  EXPECT_EQ(copy.at("tuple").toTupleRef().elements()[0].toTensor().sum().item<float>(), 2);
  EXPECT_EQ(copy.at("tuple").toTupleRef().elements()[1].toInt(), 7);
  EXPECT_TRUE(copy.at("none").isNone());
  EXPECT_EQ(dict.at("list").toTensorVector()[0].sum().item<float>(), 18) << "the original changed";
}

TEST_F(Fp32, SnapshotsAValueAndWritesNoMoreThanTheView) {
  const torch::Tensor big = torch::arange(1 << 20, torch::kFloat);
  const torch::Tensor view = big.narrow(0, 1000, 10);
  const Value live =
      Value::ordered_dict({{"view", record_of(view)},
                           {"nested", Value::list({Value::tuple({record_of(view), "text"}), 3})}});
  const Value snapshot = clone_tensors_for_torch_save(live);
  const TensorRecord before =
      float_tensor({10}, {1000, 1001, 1002, 1003, 1004, 1005, 1006, 1007, 1008, 1009});
  view.fill_(0);
  EXPECT_EQ(snapshot.kind(), Value::Kind::kOrderedDict);
  EXPECT_EQ(snapshot.at("view"), Value(before));
  EXPECT_EQ(snapshot.at("nested").at(0).at(0), Value(before));
  EXPECT_EQ(snapshot.at("nested").at(0).at(1).as_string(), "text");
  EXPECT_EQ(snapshot.at("nested").at(1).as_int(), 3);
  for (const Value& value : {live, snapshot})
    EXPECT_LT(write_torch_file(folder_ / "view.pt", value).bytes, 4096u);
}

}  // namespace
}  // namespace anymesh
