// Real DeepSpeed's checkpoints of rarer kinds, beside the values that the run held when it saved
// them (tests/fixtures/deepspeed/cases). Prints a table: kinds x tools.

#include <iostream>
#include <map>

#include "ckpt_support.h"
#include "framework/checkpoint/format/convert.h"
#include "framework/checkpoint/format/fp32_export.h"
#include "framework/checkpoint/format/merged_tensor.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;
using Tensors = std::map<std::string, TensorRecord>;

// What a kind of checkpoint must give.
struct Case {
  const char* name;
  const char* converts = "";  // else what ds_to_universal's refusal says
  const char* refused = "";   // what all tools' refusal says
};

const Case kCases[] = {
    {"amsgrad"},
    {"autotp", "", "AutoTP layouts are not supported"},
    {"bnb8", "['state1']: expected a floating-point number for each of 118 elements"},
    {"frozen-uint8"},
    {"muon"},
    {"pipeline-frozen"},
    {"pipeline-tied"},
    {"pipeline-z0", "may be that of tied_modules.embed.weight or of 1.l.weight"},
    {"round-robin"},
    {"sgd"},
    {"z0-bf16-order"},
    {"z0-fp32-order", "may be that of enc.weight or of dec.weight"},
    {"z0-frozen", "may be that of enc.weight or of dec.weight"},
};

std::map<std::string, std::map<std::string, std::string>> table;

class DeepSpeedCases : public Ckpt, public ::testing::WithParamInterface<Case> {
 protected:
  static fs::path folder() { return fs::path(ANYMESH_CASES) / GetParam().name; }
  static fs::path tag() { return resolve_tag(folder() / "checkpoint"); }

  static Tensors truth(const std::string& what) {
    Tensors tensors;
    for (const auto& [name, value] : read_torch_file(folder() / "truth.pt").at(what).entries())
      if (value.is_tensor()) tensors.emplace(name.as_string(), value.as_tensor());
    return tensors;
  }

  static void note(const std::string& tool, const std::string& result) {
    table[GetParam().name][tool] = result;
  }

  // What a tool returned, in the table.
  static Outcome noted(const std::string& tool, const Outcome& outcome) {
    note(tool, outcome.code == 0 ? "ok" : "FAILS");
    return outcome;
  }

  static void expect_same(const TensorRecord& a, const TensorRecord& b, const std::string& name) {
    EXPECT_EQ(widened(a).dtype, widened(b).dtype) << name;
    EXPECT_EQ(a.shape, b.shape) << name;
    EXPECT_EQ(read_bytes(*widened(a).bytes), read_bytes(*widened(b).bytes)) << name;
  }

  // A run in half precision knows no more of its weights than masters round to.
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
    const Value state = read_torch_file(tag() / model_states_file(0));
    for (const auto& [alias, name] :
         state.find(keys::kSharedParams).value_or(Value::dict()).entries())
      names.emplace(alias.as_string(), name.as_string());
    return names;
  }

  static TensorRecord as_bfloat16(const TensorRecord& tensor) {
    std::vector<uint16_t> rounded;
    for (const float value : floats(*tensor.bytes)) {
      uint32_t bits;
      std::memcpy(&bits, &value, sizeof bits);
      rounded.push_back(static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16));
    }
    return {DType::kBFloat16, tensor.shape, false, bytes_of(rounded)};
  }

  // Every state that the run held of a parameter, unless the optimizer's are unlike the live ones.
  void expect_states(const WholeCheckpoint& universal) {
    if (GetParam().name == std::string("round-robin")) return;  // the live mapping is wrong
    for (const auto& [name, states] :
         read_torch_file(folder() / "truth.pt").at("state").entries()) {
      const WholeParameter parameter = universal.parameter(name.as_string());
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
      }
    }
  }
};

TEST_P(DeepSpeedCases, GivesWeightsAndMoments) {
  const Case& kind = GetParam();
  const fs::path weights = folder_ / "weights", universal = folder_ / "universal";
  const std::string refusal = message_of(
      [&] { export_fp32({.checkpoint = folder() / "checkpoint", .output = weights}, {}); });
  note("zero_to_fp32", refusal.empty() ? "ok" : "refused");
  const std::string conversion =
      message_of([&] { convert_to_universal({.input = tag(), .output = universal}, {}); });
  note("ds_to_universal", conversion.empty() ? "ok" : "refused");
  const Outcome verified = noted("verify", verify(tag())),
                inspected = noted("inspect", inspect(tag()));
  if (*kind.refused) {
    for (const std::string& text : {refusal, conversion, verified.text, inspected.text})
      EXPECT_NE(text.find(kind.refused), std::string::npos) << text;
    return note("diff", "refused");
  }
  ASSERT_EQ(refusal, "");
  EXPECT_EQ(verified.code, 0) << verified.text;
  EXPECT_EQ(inspected.code, 0) << inspected.text;
  Tensors exported;
  for (const auto& [name, value] : read_torch_file(weights / kWeightsFile).entries())
    exported.emplace(name.as_string(), value.as_tensor());
  expect_weights(exported);
  const Outcome with_weights = noted("diff", diff(tag(), weights));
  EXPECT_EQ(with_weights.code, 0) << with_weights.text;

  if (*kind.converts) {
    EXPECT_NE(conversion.find(kind.converts), std::string::npos) << conversion;
    return;
  }
  ASSERT_EQ(conversion, "");
  expect_states(open_whole_checkpoint(universal, 2));
  for (const Outcome& outcome :
       {diff(tag(), universal), diff(universal, weights), verify(universal), inspect(universal)})
    EXPECT_EQ(outcome.code, 0) << outcome.text;
}

INSTANTIATE_TEST_SUITE_P(Kinds, DeepSpeedCases, ::testing::ValuesIn(kCases), [](const auto& info) {
  std::string name = info.param.name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

class PrintsTable : public ::testing::Environment {
 public:
  void TearDown() override {
    for (const auto& [kind, tools] : table) {
      std::cout << kind << ":";
      for (const auto& [tool, result] : tools) std::cout << "  " << tool << " " << result;
      std::cout << '\n';
    }
  }
};
const auto* const kPrintsTable = ::testing::AddGlobalTestEnvironment(new PrintsTable);

}  // namespace
}  // namespace anymesh
