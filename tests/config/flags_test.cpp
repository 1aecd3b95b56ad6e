#include "framework/config/flags.h"

#include "tests/config/support.h"

namespace anymesh {
namespace {

struct Fields {
  int width = 4;
  int64_t steps = 10;
  uint64_t seed = 1;
  double rate = 0.5;
  std::optional<double> fraction;
  std::string folder;
  std::vector<std::string> paths;
  std::vector<int> layers = {2};
  bool half = false;
  bool fused = true;
};

class FlagsTest : public testing::Test {
 protected:
  FlagsTest() {
    flags.group("Things");
    flags.add("width", fields.width, "w");
    flags.add("steps", fields.steps, "s", "as many as it takes");
    flags.add("seed", fields.seed, "s");
    flags.add("rate", fields.rate, "r");
    flags.add("fraction", fields.fraction, "f");
    flags.add("folder", fields.folder, "f");
    flags.add("paths", fields.paths, "p");
    flags.add("layers", fields.layers, "l");
    flags.add("half", fields.half, "h");
    flags.add("no-fused", fields.fused, "f");
  }

  std::string set(const char* name, const std::string& text) {
    return refusal([&] { flags.set(name, "--" + std::string(name) + " " + text, {text}); });
  }

  const Setting setting(const std::string& flag) {
    for (const Setting& setting : flags.settings()) {
      if (setting.flag == flag) return setting;
    }
    return {};
  }

  Fields fields;
  FlagTable flags{"program", "description"};
};

TEST_F(FlagsTest, SetsEveryType) {
  flags.set("width", "--width", {"-3"});
  flags.set("steps", "--steps", {"9000000000"});
  flags.set("seed", "--seed", {"9223372036854775807"});
  flags.set("rate", "--rate", {"1e-3"});
  flags.set("fraction", "--fraction", {".25"});
  flags.set("folder", "--folder", {"a b"});
  flags.set("paths", "--paths", {"x", "y"});
  flags.set("half", "--half", {"true"});
  flags.set("no-fused", "--no-fused", {"false"});
  EXPECT_EQ(fields.width, -3);
  EXPECT_EQ(fields.steps, 9000000000);
  EXPECT_EQ(fields.seed, 9223372036854775807u);
  EXPECT_EQ(fields.rate, 1e-3);
  EXPECT_EQ(fields.fraction, 0.25);
  EXPECT_EQ(fields.folder, "a b");
  EXPECT_EQ(fields.paths, (std::vector<std::string>{"x", "y"}));
  EXPECT_TRUE(fields.half);
  EXPECT_FALSE(fields.fused);
}

TEST_F(FlagsTest, OneIntegerOrAList) {
  EXPECT_EQ(setting("layers").value, Setting::Value(int64_t{2}));
  flags.set("layers", "--layers", {"[0, 1,1]"});
  EXPECT_EQ(fields.layers, (std::vector<int>{0, 1, 1}));
  EXPECT_EQ(setting("layers").value, Setting::Value(std::vector<int64_t>{0, 1, 1}));
  EXPECT_EQ(setting("layers").text, "[0,1,1]");
  EXPECT_EQ(setting("layers").words, "--layers '[0,1,1]'");
  EXPECT_EQ(set("layers", "[0,1,1]"), "");
  EXPECT_THAT(set("layers", "3"), HasSubstr("contradict each other"));
  for (const char* text : {"[", "[]", "[1"})
    EXPECT_THAT(set("layers", text), HasSubstr("expected an integer or a list such as [0,1,1]"));
  for (const char* text : {"", "1]", "[1,]", "[1 0]", "[1,,0]", "[[1]]"})
    EXPECT_THAT(set("layers", text), HasSubstr("expected an integer between"));
}

TEST_F(FlagsTest, RefusesTextThatDoesNotParseInFull) {
  for (const char* text : {"", "x", "2.5", "3x", " 3", "+3", "1e3", "2147483648", "-2147483649"}) {
    EXPECT_THAT(set("width", text), HasSubstr("--width " + std::string(text) +
                                              ": expected an "
                                              "integer between -2147483648 and 2147483647"));
  }
  for (const char* text : {"-1", "9223372036854775808", "18446744073709551616"}) {
    EXPECT_THAT(set("seed", text), HasSubstr("integer between 0 and 9223372036854775807"));
  }
  for (const char* text : {"", "x", "1e-3x", "nan", "inf", "-inf", "1e400", "1,5"}) {
    EXPECT_THAT(set("rate", text),
                HasSubstr("--rate " + std::string(text) + ": expected a number"));
    EXPECT_THAT(set("fraction", text), HasSubstr("expected a number"));
  }
  EXPECT_THAT(set("half", "yes"), HasSubstr("--half yes: expected true or false"));
  EXPECT_THAT(set("folder", ""), HasSubstr("--folder : the value is empty"));
  EXPECT_THAT(refusal([&] {
                flags.set("paths", "--paths x ''", {"x", ""});
              }),
              HasSubstr("--paths x '': the value is empty"));
}

TEST_F(FlagsTest, SourcesMayRepeatButNotContradict) {
  EXPECT_EQ(set("rate", "0.001"), "");
  EXPECT_EQ(set("rate", "1e-3"), "");
  EXPECT_EQ(refusal([&] { flags.set("rate", "optimizer.lr 0.1 of f.json", {"0.1"}); }),
            "--rate 0.001 and optimizer.lr 0.1 of f.json contradict each other; keep one of them");
  flags.set("paths", "--paths x", {"x"});
  EXPECT_EQ(refusal([&] { flags.set("paths", "--paths x", {"x"}); }), "");
  EXPECT_EQ(refusal([&] { flags.set("paths", "--paths y", {"y"}); }),
            "--paths x and --paths y contradict each other; keep one of them");
}

TEST_F(FlagsTest, KnowsWhoSaidWhat) {
  EXPECT_FALSE(flags.given("width"));
  set("width", "4");  // the default, but given
  EXPECT_TRUE(flags.given("width"));
  EXPECT_EQ(flags.origin("width"), "--width 4");
  EXPECT_EQ(flags.find("nothing"), nullptr);
}

TEST_F(FlagsTest, SettingsAreTypedAndNamedAsInArgparse) {
  set("rate", "0.1");
  flags.set("no-fused", "--no-fused", {"false"});
  EXPECT_EQ(flags.settings().size(), 10u);
  EXPECT_EQ(setting("width").value, Setting::Value(int64_t{4}));
  EXPECT_EQ(setting("width").text, "4");
  EXPECT_FALSE(setting("width").given);
  EXPECT_EQ(setting("rate").value, Setting::Value(0.1));
  EXPECT_EQ(setting("rate").text, "0.1");
  EXPECT_TRUE(setting("rate").given);
  EXPECT_EQ(setting("fraction").value, Setting::Value());
  EXPECT_EQ(setting("fraction").text, "unset");
  EXPECT_EQ(setting("folder").text, "none");
  EXPECT_EQ(setting("no-fused").dest, "fused");
  EXPECT_EQ(setting("no-fused").value, Setting::Value(false));
  EXPECT_EQ(setting("half").dest, "half");
  EXPECT_EQ(setting("half").text, "false");
}

TEST_F(FlagsTest, DefaultsForHelp) {
  EXPECT_EQ(flags.find("width")->rule.shown, "4");
  EXPECT_EQ(flags.find("steps")->rule.shown, "as many as it takes");
  EXPECT_EQ(flags.find("fraction")->rule.shown, "unset");
  EXPECT_EQ(flags.find("paths")->rule.shown, "none");
  EXPECT_EQ(flags.find("no-fused")->rule.shown, "off");
  EXPECT_EQ(flags.find("width")->group, "Things");
}

TEST_F(FlagsTest, MistakesInTheTableAreLogicErrors) {
  bool clear = true;
  EXPECT_THROW(flags.add("width", fields.width, ""), std::logic_error);
  EXPECT_THROW(flags.add("clear", clear, ""), std::logic_error);
  EXPECT_THROW(flags.set("nothing", "--nothing", {"1"}), std::logic_error);
  EXPECT_THROW(flags.set("width", "--width 1 2", {"1", "2"}), std::logic_error);
}

}  // namespace
}  // namespace anymesh
