#include "framework/format/torch_file/value.h"

#include "tests/support/fixtures.h"

namespace anymesh {
namespace {

const Value kState =
    Value::dict({{"step", 4}, {"groups", Value::list({Value::dict({{"lr", 0.5}})})}}).named("f.pt");

TEST(Value, ReadsWhatWasBuilt) {
  EXPECT_EQ(kState.at("step").as_int(), 4);
  EXPECT_EQ(kState.at("groups").at(0).at("lr").as_double(), 0.5);
  EXPECT_FALSE(kState.find("absent"));
  EXPECT_EQ(kState.size(), 2u);
  EXPECT_EQ(Value::size(Shape{2, 3}).as_shape(), (Shape{2, 3}));
  EXPECT_EQ(Value::dtype(DType::kBFloat16), Value(Value::Global{"torch", "bfloat16"}));
}

TEST(Value, ErrorsNameFileAndKeys) {
  EXPECT_EQ(message_of([] { kState.at("groups").at(0).at("lr").as_string(); }),
            "f.pt: ['groups'][0]['lr']: expected a string, found 0.500000");
  EXPECT_EQ(message_of([] { kState.at("groups").at(1); }),
            "f.pt: ['groups']: has 1 items, expected at least 2");
  EXPECT_EQ(message_of([] { kState.at("lr"); }), "f.pt: has no key 'lr', only 'step', 'groups'");
  EXPECT_EQ(message_of([] { kState.at("step").at("x"); }),
            "f.pt: ['step']: expected a dict, found 4");
}

TEST(Value, CopiesAreIndependent) {
  Value copy = kState;
  copy.set("step", 5).erase("groups").set("new", true);
  EXPECT_EQ(copy.at("step").as_int(), 5);
  EXPECT_EQ(copy.size(), 2u);
  EXPECT_EQ(kState.at("step").as_int(), 4);
  EXPECT_EQ(kState.at("groups").size(), 1u);
  Value list = Value::list({1});
  const Value before = list;
  list.push_back(2);
  EXPECT_EQ(before.size(), 1u);
  EXPECT_EQ(list.size(), 2u);
}

TEST(Value, WhatATemporaryGivesMayBeKept) {
  const Value tree = Value::dict({{"name", std::string(100, 'x')}, {"t", float_tensor({1}, {1})}});
  const std::string& name = tree.at("name").as_string();
  const TensorRecord& tensor = tree.at("t").as_tensor();
  EXPECT_EQ(name, std::string(100, 'x'));
  EXPECT_EQ(floats(tensor), std::vector<float>{1});
}

TEST(Value, ObjectsHaveAttributes) {
  Value scaler = loss_scaler(2.0);
  const Value before = scaler;
  EXPECT_EQ(scaler.at("cur_scale").as_double(), 2.0);
  scaler.set("cur_scale", 4.0);
  EXPECT_EQ(scaler.at("cur_scale").as_double(), 4.0);
  EXPECT_EQ(before.at("cur_scale").as_double(), 2.0);
  EXPECT_TRUE(scaler.is_object("LossScaler"));
  EXPECT_EQ(zero_stage_enum(2).as_int(), 2);
}

TEST(Value, NumbersComeInManyForms) {
  const Value step = float_tensor({}, {10.0f});
  EXPECT_EQ(step.as_double(), 10.0);
  EXPECT_EQ(step.as_int(), 10);
  EXPECT_EQ(Value(3).as_double(), 3.0);
  EXPECT_EQ(Value(3.0).as_int(), 3);
  EXPECT_EQ(Value(true).as_int(), 1);
  EXPECT_THROW(Value(3.5).as_int(), DamagedFile);
  EXPECT_THROW(Value("3").as_int(), DamagedFile);
  EXPECT_THROW(Value(float_tensor({2}, {1, 2})).as_double(), DamagedFile);
}

TEST(Value, ComparesByContent) {
  EXPECT_EQ(kState,
            Value::dict({{"step", 4}, {"groups", Value::list({Value::dict({{"lr", 0.5}})})}}));
  EXPECT_NE(Value(1), Value(1.0));
  EXPECT_NE(Value::list({1}), Value::tuple({1}));
  EXPECT_EQ(Value(float_tensor({2}, {1, 2})), Value(float_tensor({2}, {1, 2})));
  EXPECT_NE(Value(float_tensor({2}, {1, 2})), Value(float_tensor({2}, {1, 3})));
  EXPECT_NE(Value(float_tensor({2}, {1, 2})), Value(float_tensor({1, 2}, {1, 2})));
}

TEST(Value, RefusesImpossibleShapes) {
  EXPECT_EQ(numel(Shape{}), 1);
  EXPECT_EQ(numel(Shape{3, 0}), 0);
  EXPECT_THROW(numel(Shape{-1}), DamagedFile);
  EXPECT_THROW(numel(Shape{INT64_MAX, 2}), DamagedFile);
  EXPECT_THROW(numel(Shape{0, INT64_MAX, 2}), DamagedFile);
}

TEST(Value, ManyKeysAreFoundWhereTheyAre) {
  std::vector<Value::Entry> entries;
  for (int i = 0; i < 1000; ++i) entries.emplace_back("k" + std::to_string(i), i);
  entries.emplace_back(7, "seven");
  Value dict = Value::dict(std::move(entries));
  const Value copy = dict;
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(dict.at("k" + std::to_string(i)).as_int(), i);
  EXPECT_TRUE(dict.find("k1000").is_none());
  EXPECT_EQ(dict.find(int64_t{7}).as_string(), "seven");
  dict.erase("k0").set("k5", "five").set("new", 3);
  EXPECT_FALSE(dict.contains("k0"));
  EXPECT_EQ(dict.at("k5").as_string(), "five");
  EXPECT_EQ(dict.at("k999").as_int(), 999);
  EXPECT_EQ(dict.at("new").as_int(), 3);
  dict.set("k6", "six").set("newer", 4);  // earlier keys are found again
  EXPECT_EQ(dict.at("k6").as_string(), "six");
  EXPECT_EQ(dict.at("newer").as_int(), 4);
  EXPECT_EQ(copy.at("k0").as_int(), 0);
  EXPECT_EQ(copy.at("k5").as_int(), 5);
}

// A message is short and does not steer the terminal, whatever a file's names are.
TEST(Value, MessagesQuoteNamesAsText) {
  const std::string escape = "\x1b[2J\n", nul("a\0b", 3), huge(5'000'000, 'x');
  const Value dict =
      Value::dict({{escape, Value::dict({{nul, 1}})}, {huge, Value::list()}}).named("f" + escape);
  EXPECT_EQ(message_of([&] { dict.at(escape).at(nul).as_string(); }),
            "f\\x1b[2J\\n: ['\\x1b[2J\\n']['a\\x00b']: expected a string, found 1");
  EXPECT_LT(message_of([&] { dict.at(huge).at("x"); }).size(), 1000u);
  EXPECT_LT(message_of([&] { dict.at(huge + "y"); }).size(), 1000u);
  EXPECT_EQ(message_of([&] { dict.at(escape).at("x"); }),
            "f\\x1b[2J\\n: ['\\x1b[2J\\n']: has no key 'x', only 'a\\x00b'");
  EXPECT_LT(message_of([&] { throw DamagedFile(huge); }).size(), 10'000u);
}

}  // namespace
}  // namespace anymesh
