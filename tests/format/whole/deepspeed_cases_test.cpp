// Compares real DeepSpeed checkpoints of rarer kinds with the values that the run held when it
// saved them (tests/fixtures/deepspeed/cases, folders and archives).

#include <map>

#include "framework/format/sharded/tensor_views.h"
#include "framework/format/whole/convert.h"
#include "framework/format/whole/fp32_export.h"
#include "tests/tools/ckpt_support.h"

namespace anymesh {
namespace {

using Tensors = std::map<std::string, TensorRecord>;

// A kind of checkpoint and its right results.
struct DeepSpeedCase {
  const char* name;
  const char* converts = "";  // else the text of ds_to_universal's refusal
  const char* refused = "";   // the text of all tools' refusal
  bool assume_module_order = false;
};

const DeepSpeedCase kCases[] = {
    {"amsgrad"},
    {"autotp"},
    {"bf16-masters"},
    {"bnb8", "['state1']: expected a floating-point number for each of 118 elements"},
    {"client-complex"},
    {"frozen-float8"},
    {"frozen-uint8"},
    {"jobs/adafactor-z2"},
    {"jobs/crc32-off-z2"},
    {"jobs/dpworld-missing-z2"},
    {"jobs/elastic-z1"},
    {"jobs/nadam-z3"},
    {"jobs/ulysses-v0.18-z2"},
    {"jobs/ulysses-z2"},
    {"jobs/v0.4.5-z2"},
    {"muon"},
    {"name-long", "at most 255 are possible"},
    {"nested-tag"},
    {"optimizers/adafactor-z0-bf16"},
    {"optimizers/adafactor-z0-fp32"},
    {"optimizers/adagrad-z0-fp32"},
    {"optimizers/adagrad-z1-bf16"},
    {"optimizers/adagrad-z3-bf16"},
    {"optimizers/lion-z0-fp32"},
    {"optimizers/lion-z1-bf16"},
    {"optimizers/lion-z3-bf16"},
    {"optimizers/muon-z0-bf16"},
    {"optimizers/muon-z0-fp32"},
    {"optimizers/muon-z1-bf16"},
    {"optimizers/muon-z3-bf16"},
    {"optimizers/muon-z2-bf16"},
    {"optimizers/muonbf-z1-bf16"},  // BF16_Optimizer
    {"optimizers/rows-z0-fp32"},
    {"optimizers/sgdm-z0-bf16"},
    {"optimizers/sgdm-z2-bf16"},
    {"optimizers/sgdm-z3-bf16"},
    {"pipeline-bf16-z0"},
    {"pipeline-bf16-z0-dp3"},
    {"pipeline-bf16-z0-tp2"},
    {"pipeline-frozen"},
    {"pipeline-tied"},
    {"pipeline-z0", "may be that of tied_modules.embed.weight or of 1.l.weight"},
    {"round-robin"},
    {"sgd"},
    {"stale-rank", "", "left over from an earlier save"},
    {"z0-bf16-order"},
    {"z0-fp32-order", "may be that of enc.weight or of dec.weight"},
    {"z0-frozen", "may be that of enc.weight or of dec.weight"},
    {"zero-element-z0", "", "", true},
};

class DeepSpeedCases : public Ckpt, public ::testing::WithParamInterface<DeepSpeedCase> {
 protected:
  static fs::path folder() {
    const fs::path unpacked = fs::path(ANYMESH_CASES) / GetParam().name;
    return fs::exists(unpacked) ? unpacked : fixture(GetParam().name);
  }
  static fs::path tag() { return resolve_tag(folder() / "checkpoint"); }

  static Tensors truth(const std::string& what) {
    Tensors tensors;
    for (const auto& [name, value] : all_truth().at(what).entries())
      if (value.is_tensor()) tensors.emplace(name.as_string(), value.as_tensor());
    return tensors;
  }

  // The jobs' truth.pt have one level: "NAME fp32", "NAME exp_avg", "NAME buffer", "NAME weight".
  static Value all_truth() {
    const Value flat = read_torch_file(folder() / "truth.pt");
    if (flat.contains("fp32")) return flat;
    Value fp32 = Value::dict(), state = Value::dict(), buffers = Value::dict();
    for (const auto& [key, value] : flat.entries()) {
      const std::string text = key.as_string();
      const size_t space = text.rfind(' ');
      if (space == std::string::npos) continue;
      const std::string name = text.substr(0, space), kind = text.substr(space + 1);
      if (kind == "buffer") buffers.set(name, value);
      if (kind == "fp32" || (kind == "weight" && !flat.contains(name + " fp32")))
        fp32.set(name, value);
      if (kind.starts_with("exp_avg")) {
        Value states = state.find(name).value_or(Value::dict());
        state.set(name, states.set(kind, value));
      }
    }
    return Value::dict({{"fp32", fp32}, {"state", state}, {"buffers", buffers}});
  }

  static void expect_same(const TensorRecord& a, const TensorRecord& b, const std::string& name) {
    EXPECT_EQ(widened(a).dtype, widened(b).dtype) << name;
    EXPECT_EQ(a.shape, b.shape) << name;
    EXPECT_EQ(read_bytes(widened(a)), read_bytes(widened(b))) << name;
  }

  // For a run in half precision only the rounded masters are known.
  void expect_weights(Tensors exported) {
    const bool rounded = GetParam().name == std::string("z0-bf16-order");
    Tensors expected = truth("fp32");
    if (GetParam().name == std::string("round-robin")) expected = of_module();
    expected.merge(truth("buffers"));
    for (const auto& [name, tensor] : expected) {
      ASSERT_TRUE(exported.contains(name)) << name;
      const bool master = exported.at(name).dtype == DType::kFloat32;
      if ((rounded || tensor.dtype == DType::kBFloat16) && master) {
        expect_same(as_bfloat16(exported.at(name)), tensor, name);
      } else {
        expect_same(exported.at(name), tensor, name);
      }
      exported.erase(name);
    }
    for (const auto& [name, value] : shared()) exported.erase(name);
    EXPECT_TRUE(exported.empty()) << exported.begin()->first << " is not the model's";
  }

  static Tensors of_module() {
    const NamedTensors tensors = module_tensors(read_torch_file(tag() / model_states_file(0)));
    return {tensors.begin(), tensors.end()};
  }

  static std::map<std::string, std::string> shared() {
    std::map<std::string, std::string> names;
    const bool zero3 = fs::exists(tag() / zero3_model_states_file(0, 0));
    const Value state =
        read_torch_file(tag() / (zero3 ? zero3_model_states_file(0, 0) : model_states_file(0)));
    for (const auto& [alias, name] :
         state.find(keys::kSharedParams).value_or(Value::dict()).entries())
      names.emplace(alias.as_string(), name.as_string());
    if (GetParam().name == std::string("jobs/v0.4.5-z2"))  // records none
      names.emplace("head.weight", "embed.weight");
    return names;
  }

  static TensorRecord as_bfloat16(const TensorRecord& tensor) {
    std::vector<uint16_t> rounded;
    for (const float value : floats(tensor)) {
      uint32_t bits;
      std::memcpy(&bits, &value, sizeof bits);
      rounded.push_back(static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16));
    }
    return {DType::kBFloat16, tensor.shape, false, bytes_of(rounded)};
  }

  // Expects every state that the run held of a parameter, unless the optimizer's mapping is wrong.
  void expect_states(const Checkpoint& universal) {
    if (GetParam().name == std::string("round-robin")) return;  // the live mapping is wrong
    size_t compared = 0;
    for (const auto& [name, states] : all_truth().at("state").entries()) {
      const SavedParameter parameter = universal.parameter(name.as_string());
      for (const auto& [state, value] : states.entries()) {
        if (!value.is_tensor()) continue;
        const std::string what = name.as_string() + " " + state.as_string();
        if (state == Value(kStepState)) {
          EXPECT_EQ(parameter.step.as_double(), value.as_double()) << what;
          continue;
        }
        const TensorRecord own = parameter.state(state.as_string());
        ASSERT_TRUE(own.bytes) << what;
        expect_same(own, value.as_tensor(), what);
        ++compared;
      }
    }
    if (std::string(GetParam().name).find('/') != std::string::npos) {
      EXPECT_GE(compared, 6u);
    }
  }
};

TEST_P(DeepSpeedCases, GivesWeightsAndMoments) {
  const DeepSpeedCase& kind = GetParam();
  const fs::path weights = folder_ / "weights", universal = folder_ / "universal";
  const std::string refusal = message_of(
      [&] { export_fp32({.checkpoint = folder() / "checkpoint", .output = weights}, {}); });
  const std::string conversion = message_of([&] {
    convert_to_universal(
        {.input = tag(), .output = universal, .assume_module_order = kind.assume_module_order}, {});
  });
  const Outcome verified = verify(tag()), inspected = inspect(tag());
  if (*kind.refused) {
    for (const std::string& text : {refusal, conversion, verified.text, inspected.text})
      EXPECT_THAT(text, HasSubstr(kind.refused));
    return;
  }
  ASSERT_EQ(refusal, "");
  expect_well(verified);
  expect_well(inspected);
  Tensors exported;
  for (const auto& [name, value] : read_torch_file(weights / kWeightsFile).entries())
    exported.emplace(name.as_string(), value.as_tensor());
  expect_weights(exported);
  expect_well(diff(tag(), weights));

  if (*kind.converts) {
    EXPECT_THAT(conversion, HasSubstr(kind.converts));
    return;
  }
  ASSERT_EQ(conversion, "");
  expect_states(open_checkpoint(universal, 2));
  for (const Outcome& outcome :
       {diff(tag(), universal), diff(universal, weights), verify(universal), inspect(universal)})
    expect_well(outcome);
}

INSTANTIATE_TEST_SUITE_P(Kinds, DeepSpeedCases, ::testing::ValuesIn(kCases), [](const auto& info) {
  std::string name = info.param.name;
  std::ranges::replace_if(
      name, [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); }, '_');
  return name;
});

}  // namespace
}  // namespace anymesh
