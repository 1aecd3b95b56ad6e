// Compares real DeepSpeed checkpoints of rarer kinds with the values that the run held when it
// saved them (tests/fixtures/deepspeed/cases, folders and archives). Prints a table: kinds x tools.

#include <iostream>
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

std::map<std::string, std::map<std::string, std::string>> table;

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

  static void note(const std::string& tool, const std::string& result) {
    table[GetParam().name][tool] = result;
  }

  // Enters a tool's result into the table.
  static Outcome noted(const std::string& tool, const Outcome& outcome) {
    note(tool, outcome.code == 0 ? "ok" : *GetParam().refused ? "refused" : "FAILS");
    return outcome;
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
  note("zero_to_fp32", refusal.empty() ? "ok" : "refused");
  const std::string conversion = message_of([&] {
    convert_to_universal(
        {.input = tag(), .output = universal, .assume_module_order = kind.assume_module_order}, {});
  });
  note("ds_to_universal", conversion.empty() ? "ok" : "refused");
  const Outcome verified = noted("verify", verify(tag())),
                inspected = noted("inspect", inspect(tag()));
  if (*kind.refused) {
    for (const std::string& text : {refusal, conversion, verified.text, inspected.text})
      EXPECT_THAT(text, HasSubstr(kind.refused));
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
    EXPECT_THAT(conversion, HasSubstr(kind.converts));
    return;
  }
  ASSERT_EQ(conversion, "");
  expect_states(open_checkpoint(universal, 2));
  for (const Outcome& outcome :
       {diff(tag(), universal), diff(universal, weights), verify(universal), inspect(universal)})
    EXPECT_EQ(outcome.code, 0) << outcome.text;
}

INSTANTIATE_TEST_SUITE_P(Kinds, DeepSpeedCases, ::testing::ValuesIn(kCases), [](const auto& info) {
  std::string name = info.param.name;
  std::ranges::replace_if(
      name, [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); }, '_');
  return name;
});

// Kinds made by a change to those above.
class DeepSpeedKinds : public Ckpt {
 protected:
  fs::path copy_of_case(const std::string& name) {
    const fs::path tag = folder_ / name;
    fs::copy(resolve_tag(fs::path(ANYMESH_CASES) / name / "checkpoint"), tag,
             fs::copy_options::recursive);
    return tag;
  }

  Checkpoint converted(const fs::path& tag) {
    convert_to_universal({.input = tag, .output = folder_ / "universal"}, {});
    return open_checkpoint(folder_ / "universal", 1);
  }

  static std::string refusal(const fs::path& tag) {
    return message_of(
        [&] { convert_to_universal({.input = tag, .output = tag.string() + "_universal"}, {}); });
  }

  // Changes the state that a plain torch optimizer keeps at ZeRO 0.
  static void change_optimizer(const fs::path& tag, const std::function<void(Value&)>& edit) {
    change(tag / model_states_file(0), [&](Value& v) {
      Value optimizer = v.at(keys::kOptimizer);
      edit(optimizer);
      v.set(keys::kOptimizer, optimizer);
    });
  }

  // Changes the states of each group of a ZeRO 1 or 2 checkpoint.
  static void change_states(const fs::path& tag, const std::function<void(Value&)>& edit) {
    for (const auto& entry : fs::directory_iterator(tag)) {
      const auto name = parse_checkpoint_file_name(entry.path().filename().string());
      if (!name || name->kind != CheckpointFileName::Kind::kOptimStates) continue;
      change(entry.path(), [&](Value& v) {
        Value state = v.at(keys::kOptimizerStateDict), base = state.at(keys::kBaseOptimizerState);
        auto entries = base.at(keys::kState).entries();
        for (auto& [group, states] : entries) edit(states);
        base.set(keys::kState, Value::dict(entries));
        v.set(keys::kOptimizerStateDict, state.set(keys::kBaseOptimizerState, base));
      });
    }
  }
};

TEST_F(DeepSpeedKinds, NamesInParamGroupsTellTheOrder) {
  const fs::path tag = copy_of_case("z0-fp32-order");
  change_optimizer(tag, [](Value& optimizer) {
    auto groups = optimizer.at(keys::kParamGroups).items();
    const std::vector<std::string> names = {"dec.weight", "dec.bias", "enc.weight", "enc.bias"};
    groups[0].set(keys::kParamNames, Value::list_of(names));
    optimizer.set(keys::kParamGroups, Value::list(groups));
  });
  const Checkpoint universal = converted(tag);
  const Value truth = read_torch_file(fs::path(ANYMESH_CASES) / "z0-fp32-order" / "truth.pt");
  for (const auto& [name, states] : truth.at("state").entries())
    for (const std::string_view state : {kExpAvgState, kExpAvgSqState})
      EXPECT_EQ(floats(universal.parameter(name.as_string()).state(state)),
                floats(states.at(state).as_tensor()));
}

// Numbers for 8 rows may be those of a matrix or of a bias. Numbers of 8 bits are no state that
// is understood.
TEST_F(DeepSpeedKinds, OtherStatesOfZeRO0AreRefusedByName) {
  const auto refusal_with = [&](const std::string& folder, const Value& states) {
    const fs::path tag = copy_of_case("z0-fp32-order");
    fs::rename(tag, folder_ / folder);
    change_optimizer(folder_ / folder, [&](Value& optimizer) {
      optimizer.set(keys::kState, Value::dict({{0, states}}));
    });
    return refusal(folder_ / folder);
  };
  const TensorRecord eight = float_tensor({8}, std::vector<float>(8)),
                     bytes{DType::kUInt8, {8, 8}, false, bytes_of(std::vector<uint8_t>(64))};
  EXPECT_THAT(refusal_with("factored", Value::dict({{"row", eight}, {"column", eight}})),
              HasSubstr("['row']: may be that of enc.bias or of dec.bias, by its shape [8]"));
  EXPECT_THAT(refusal_with("bytes", Value::dict({{"state1", bytes}})),
              HasSubstr("['state1']: expected floating-point numbers, found uint8 tensor"));
}

// Equal masters cannot be told apart. Their parameters get the model's weights, the others get
// masters.
TEST_F(DeepSpeedKinds, MastersOfEqualWeightsAreNotGuessed) {
  const fs::path tag = copy_of_case("z0-bf16-order");
  const TensorRecord zeros = float_tensor({8}, std::vector<float>(8, 0));
  change(tag / model_states_file(0), [&](Value& v) {
    const auto rounded = [] {
      return TensorRecord{DType::kBFloat16, {8}, false, bytes_of(std::vector<uint16_t>(8))};
    };
    Value module = v.at(keys::kModule), optimizer = v.at(keys::kOptimizer);
    auto masters = optimizer.at(keys::kFp32GroupsUnfused).at(0).items();
    masters[1] = masters[3] = zeros;
    v.set(keys::kModule, module.set("enc.bias", rounded()).set("dec.bias", rounded()));
    v.set(keys::kOptimizer,
          optimizer.set(keys::kFp32GroupsUnfused, Value::list({Value::list(masters)})));
  });
  EXPECT_THAT(refusal(tag), HasSubstr("may be those of enc.bias or of dec.bias"));
  const Checkpoint whole = open_checkpoint(tag, 1);
  EXPECT_TRUE(whole.weights_rounded);
  const Value optimizer = read_torch_file(tag / model_states_file(0)).at(keys::kOptimizer);
  EXPECT_EQ(floats(whole.parameter("dec.weight").weight()),
            floats(optimizer.at(keys::kFp32GroupsUnfused).at(0).at(0).as_tensor()));
  EXPECT_EQ(floats(whole.parameter("dec.bias").weight()), std::vector<float>(8, 0));
}

TEST_F(DeepSpeedKinds, OtherOptimizersHaveFilesOfTheirStates) {
  const fs::path tag = copy_of_case("amsgrad");
  change_states(tag, [](Value& states) {  // Lion, say
    states.erase(kExpAvgSqState).erase("max_exp_avg_sq");
  });
  const SavedParameter lion = converted(tag).parameter("a.weight");
  EXPECT_EQ(lion.states.size(), 2u);
  EXPECT_TRUE(lion.state(kExpAvgState).bytes);
  EXPECT_EQ(verify(folder_ / "universal").code, 0);

  change_states(tag, [](Value& states) { states.set("row", float_tensor({3}, {1, 2, 3})); });
  EXPECT_THAT(refusal(tag), HasSubstr("['row']: expected a floating-point number for each of 118"));
  change_states(tag, [](Value& states) { states.set(kExpAvgState, float_tensor({2}, {1, 2})); });
  EXPECT_EQ(verify(tag).code, 1);  // damaged moments are not another optimizer's
}

// NAdam's mu_product goes into optimizer_state.pt, as DeepSpeed takes a file of a parameter for a
// tensor. Ranks must agree on it.
TEST_F(DeepSpeedKinds, SingleNumbersAreKept) {
  const fs::path tag = copy_of_case("amsgrad");
  change_states(tag, [](Value& states) { states.set("mu_product", float_tensor({}, {0.5f})); });
  const Checkpoint universal = converted(tag);
  const Value torch = universal.optimizer_state.at(keys::kOptimizerStateDict);
  for (const auto& [group, numbers] : torch.at(keys::kState).entries()) {
    EXPECT_EQ(numbers.at("mu_product").as_double(), 0.5);
    EXPECT_FALSE(numbers.contains(kExpAvgState));
  }
  EXPECT_FALSE(universal.parameter("a.weight").states.contains("mu_product"));
  float next = 0;
  change_states(tag, [&](Value& states) { states.set("mu_product", float_tensor({}, {++next})); });
  EXPECT_THAT(refusal(tag), HasSubstr("['mu_product']: expected "));
}

// Adafactor computes its RMS anew: ranks and parameters differ in it.
TEST_F(DeepSpeedKinds, NotesANumberThatEachStepComputesAnew) {
  const fs::path universal = folder_ / "universal";
  const ConvertReport report = convert_to_universal(
      {.input = fixture("jobs/adafactor-z2") / "checkpoint", .output = universal}, {});
  EXPECT_THAT(report.warnings, Contains(StartsWith("RMS: ")));
}

TEST_F(DeepSpeedKinds, NotesAJobWithoutChecksums) {
  const fs::path source = fixture("jobs/crc32-off-z2") / "checkpoint";
  const auto note = Contains(HasSubstr("torch wrote no checksums"));
  EXPECT_THAT(convert_to_universal({.input = source, .output = folder_ / "u"}, {}).warnings, note);
  EXPECT_THAT(export_fp32({.checkpoint = source, .output = folder_ / "w"}, {}).notes, note);
  EXPECT_TRUE(verify(source).says("note: ") && verify(source).says("torch wrote no checksums"));
  EXPECT_TRUE(verify(folder_ / "u").says("(and 1 more): torch wrote no checksums"));
}

// Older versions recorded nothing.
TEST_F(DeepSpeedKinds, NamesTheVersionThatRecordedNoShapes) {
  const fs::path tag = folder_ / "tag";
  fs::copy(fixture("jobs/v0.4.5-z2") / "checkpoint" / "checkpoint", tag);
  for (int dp = 0; dp < 2; ++dp)
    change(tag / optim_states_file(dp, 0, false), [](Value& v) { v.erase(keys::kParamShapes); });
  EXPECT_THAT(refusal(tag), HasSubstr("It is of DeepSpeed '0.4.5'"));
  EXPECT_THAT(refusal(tag), HasSubstr("0.5.5 or later"));
  EXPECT_EQ(fp32_tensors(open_checkpoint(tag, 1), false).size(), 13u);
}

// At ZeRO 3 each rank has the model's file too, with frozen parameters.
TEST_F(DeepSpeedKinds, ReadsUlyssesNamesAtZeRO3) {
  const fs::path plain = tag_of("z3-fp32-dp3-frozen"), tag = folder_ / "sp";
  fs::create_directory(tag);
  for (const auto& entry : fs::directory_iterator(plain)) {
    const auto name = parse_checkpoint_file_name(entry.path().filename().string());
    if (!name) continue;
    const int sp = name->dp_rank;  // sequence parallel over all three
    fs::copy(entry.path(), tag / (name->is_model_states() ? zero3_model_states_file(sp, sp)
                                                          : optim_states_file(sp, sp, false)));
  }
  EXPECT_EQ(verify(tag).code, 0) << verify(tag).text;
  EXPECT_EQ(diff(plain, tag).code, 0) << diff(plain, tag).text;
  convert_to_universal({.input = tag, .output = folder_ / "universal"}, {});
  EXPECT_EQ(diff(plain, folder_ / "universal").code, 0);
  fs::remove(tag / optim_states_file(1, 1, false));
  EXPECT_THAT(refusal(tag), HasSubstr("zero_pp_rank_1_mp_rank_00_optim_states.pt"));
}

TEST_F(DeepSpeedKinds, TheToolsTakeTheFolderAboveATag) {
  const fs::path above = folder_ / "above", tag = above / "global_step4";
  fs::create_directory(above);
  fs::copy(tag_of("z2-bf16-dp3"), tag);
  const auto notes = [&](const std::string& name) {
    return convert_to_universal({.input = above, .output = folder_ / name}, {}).warnings;
  };
  const auto only = Contains(HasSubstr("the only tag there is used, global_step4"));
  EXPECT_THAT(notes("only"), only);
  EXPECT_THAT(export_fp32({.checkpoint = above, .output = folder_ / "w"}, {}).notes, only);
  EXPECT_EQ(diff(above, tag).code, 0);
  for (const Outcome& outcome : {verify(above), inspect(above)})
    EXPECT_TRUE(outcome.code == 0 && outcome.says("the only tag there is used")) << outcome.text;
  fs::copy(tag, above / "global_step5");
  EXPECT_REFUSES(notes("two"), "several tags; give the folder of one: glob");
  write_file(above / kLatestFile, "global_step5");
  EXPECT_THAT(notes("latest"), Not(only));
  convert_to_universal({.input = above, .output = above / "global_step5_universal"}, {});
}

TEST_F(DeepSpeedKinds, ZeRO3ConvertsAnyState) {
  const fs::path tag = tag_of("z3-fp32-dp3-frozen"), copy = copy_of("z3-fp32-dp3-frozen", folder_);
  for (int dp = 0; dp < 3; ++dp) {
    change(copy / optim_states_file(dp, 0, false), [](Value& v) {
      Value state = v.at(keys::kOptimizerStateDict), torch = state.at(keys::kOptimizerStateDict);
      auto entries = torch.at(keys::kState).entries();
      for (auto& [group, adam] : entries)  // Adagrad's
        adam = Value::dict({{"sum", adam.at(kExpAvgSqState)}, {kStepState, adam.at(kStepState)}});
      torch.set(keys::kState, Value::dict(entries));
      v.set(keys::kOptimizerStateDict, state.set(keys::kOptimizerStateDict, torch));
    });
  }
  const Checkpoint adam = open_checkpoint(tag, 1), adagrad = converted(copy);
  size_t trained = 0;
  for (const std::string& name : adam.names()) {
    const SavedParameter a = adam.parameter(name), b = adagrad.parameter(name);
    EXPECT_EQ(b.has_moments(), a.has_moments()) << name;
    if (!a.has_moments()) continue;
    ++trained;
    EXPECT_EQ(floats(b.state("sum")), floats(a.state(kExpAvgSqState))) << name;
  }
  EXPECT_GT(trained, 10u);
}

TEST_F(DeepSpeedKinds, FrozenIntegersKeepTheirBits) {
  const fs::path tag = copy_of_case("frozen-uint8");
  const std::vector<int64_t> values = {16777217, (int64_t{1} << 53) + 1};
  change(tag / model_states_file(0), [&](Value& v) {
    const TensorRecord q{DType::kInt64, {2}, false, bytes_of(values)};
    for (const auto key : {keys::kModule, keys::kFrozenParamFragments})
      v.set(key, v.at(key).set("q", q));
    Value shapes = v.at(keys::kFrozenParamShapes);
    v.set(keys::kFrozenParamShapes, shapes.set("q", Value::size(std::vector<int64_t>{2})));
  });
  for (const Checkpoint& whole : {open_checkpoint(tag, 1), converted(tag)}) {
    const TensorRecord q = whole.parameter("q").weight();
    EXPECT_EQ(q.dtype, DType::kInt64);
    EXPECT_FALSE(q.requires_grad);
    EXPECT_EQ(read_bytes(q), read_bytes(*bytes_of(values)));
  }
}

TEST_F(DeepSpeedKinds, StagesMustAgreeOnATiedLayer) {
  const fs::path tag = copy_of_case("pipeline-tied");
  change(tag / optim_states_file(0, 1, true), [](Value& v) {
    Value state = v.at(keys::kOptimizerStateDict);
    const Value fp32 = state.at(keys::kFp32Groups).at(0);
    std::vector<float> values = floats(fp32.as_tensor());
    values[5] += 1;
    const Value changed = float_tensor(fp32.as_tensor().shape, values);
    v.set(keys::kOptimizerStateDict, state.set(keys::kFp32Groups, Value::list({changed})));
  });
  EXPECT_THAT(refusal(tag), HasSubstr("tied_modules.embed.weight (fp32): should be the same on all "
                                      "pipeline stages"));
  EXPECT_EQ(verify(tag).code, 1);
}

TEST_F(DeepSpeedKinds, ALayerThatCannotBeToldFromAnotherIsRefused) {
  const fs::path tag = copy_of_case("pipeline-tied");
  fs::copy(tag / "layer_00-model_states.pt", tag / "layer_05-model_states.pt");
  EXPECT_THAT(refusal(tag),
              HasSubstr("layer_00-model_states.pt: either this or layer_05-model_states.pt "
                        "is tied_modules.embed.*"));
}

TEST_F(DeepSpeedKinds, FrozenParametersOfZeRO1AreLeftOutWhenAsked) {
  const fs::path tag = copy_of_case("pipeline-frozen");
  const NamedTensors tensors = fp32_tensors(open_checkpoint(tag, 1), /*exclude_frozen=*/true);
  EXPECT_EQ(tensors.size(), 10u);  // 6 trained, 4 buffers
  for (const auto& [name, tensor] : tensors)
    EXPECT_TRUE(name != "1.weight" && name != "2.l.weight");
  const Checkpoint zero0 = open_checkpoint(copy_of_case("z0-frozen"), 1);
  EXPECT_REFUSES(fp32_tensors(zero0, true), "drop --exclude_frozen_parameters");
}

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
