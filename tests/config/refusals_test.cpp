// The rules in the rows of the table: each refuses what it says, names its flag, and no default.
#include <map>

#include "framework/util/format.h"
#include "tests/config/support.h"
#include "tests/support/message_of.h"

namespace anymesh {
namespace {

// The rows of the GPT's table.
struct Rules : testing::Test, GptCommandLine {
  // Words that give a flag a value that is not its default.
  std::string given(const FlagTable::Flag& flag) const {
    const std::string name = "--" + flag.name;
    if (std::holds_alternative<bool*>(flag.field)) return name;
    for (const std::string& choice : flag.rule.choices)
      if (flag.default_value != Setting::Value(choice)) return name + " " + choice;
    const bool is_text = std::holds_alternative<std::string*>(flag.field) ||
                         std::holds_alternative<std::vector<std::string>*>(flag.field);
    return name + (is_text ? " x" : flag.rule.most <= 1 || flag.rule.below <= 1 ? " 0.5" : " 3");
  }

  // Words that meet a condition, and the needs of its flag but for one.
  std::string met(std::string_view condition, std::string_view but = "") const {
    const std::vector<std::string_view> parts = split(condition_of(condition), ' ');
    const FlagTable::Flag& flag = *flags.find(parts[0].substr(2));
    if (parts.size() == 1 || parts[1] == "or") return given(flag) + needs_of(flag, but);
    const bool above = parts[1] == "above";
    const std::string value(parts[above ? 2 : 1]);
    return "--" + flag.name + " " + (above ? std::to_string(std::stoi(value) + 1) : value);
  }

  std::string needs_of(const FlagTable::Flag& flag, std::string_view but = "") const {
    std::string text;
    for (const std::string& need : flag.rule.needs)
      if (need != but) text += " " + met(need, but);
    return text;
  }
};

// Conditions are texts, so that only a test can see that they name flags and values that exist.
TEST_F(Rules, NameFlagsAndValuesThatExist) {
  for (const FlagTable::Flag& flag : flags.flags()) {
    for (const auto* conditions : {&flag.rule.needs, &flag.rule.excludes}) {
      for (const std::string& condition : *conditions) {
        SCOPED_TRACE(flag.name + ": " + condition);
        EXPECT_NO_THROW(flags.holds(condition));
        const FlagTable::Flag* other = nullptr;
        for (const std::string_view word : split(condition_of(condition), ' ')) {
          if (word.starts_with("--")) other = flags.find(word.substr(2));
          ASSERT_NE(other, nullptr) << word;
          if (!word.starts_with("--") && !other->rule.choices.empty() && word != "or" &&
              word != "without") {
            EXPECT_THAT(other->rule.choices, Contains(word));
          }
        }
      }
    }
  }
}

// It may be given where it has an effect.
TEST_F(Rules, RefuseADefaultOnlyWithoutWhatItNeeds) {
  for (const FlagTable::Flag& flag : flags.flags()) {
    const auto* text = std::get_if<std::string>(&flag.default_value);
    GptCommandLine line;
    if (text && !text->empty()) {
      const std::string message = message_of([&] {
        line.read(std::vector{"--" + flag.name, *text});
      });
      if (!message.empty()) {
        EXPECT_THAT(message, HasSubstr(" has no effect without ")) << flag.name;
        EXPECT_FALSE(flag.rule.needs.empty()) << flag.name;
      }
    }
  }
}

TEST_F(Rules, RefuseValuesOutsideTheirRange) {
  for (const FlagTable::Flag& flag : flags.flags()) {
    const FlagRule& rule = flag.rule;
    const std::string name = "--" + flag.name;
    for (const double value : {rule.least - 1, rule.most + 1, rule.above, rule.below}) {
      const auto whole = static_cast<int64_t>(std::isfinite(value) ? value : 0);
      const bool is_default = flag.default_value == Setting::Value(whole);
      if (!std::isfinite(value) || (is_default && rule.shown != "required")) continue;
      EXPECT_THAT(refused(name + " " + std::to_string(whole)),
                  AllOf(StartsWith(name + " (" + std::to_string(whole)), HasSubstr(" must ")));
    }
    if (rule.choices.empty()) continue;
    EXPECT_EQ(refused(name + " other"), name + " other: expected one of " + joined(rule.choices));
  }
}

TEST_F(Rules, RefuseFlagsWithoutWhatTheyNeed) {
  for (const FlagTable::Flag& flag : flags.flags()) {
    if (flag.name == "mock-data" || flag.name == "vocab-file") continue;  // choose the tokenizer
    for (const std::string& need : flag.rule.needs) {
      if (flags.holds(condition_of(need))) continue;  // --optimizer's default, for Adam's flags
      EXPECT_THAT(refused(given(flag) + needs_of(flag, need)),
                  HasSubstr(" has no effect without " + need));
    }
  }
}

TEST_F(Rules, RefuseFlagsBesideWhatTheyExclude) {
  for (const FlagTable::Flag& flag : flags.flags()) {
    for (const std::string& other : flag.rule.excludes)
      EXPECT_THAT(refused(given(flag) + needs_of(flag) + " " + met(other)),
                  StartsWith(given(flag) + " does not work with " +
                             other.substr(0, other.find_first_of(" ,;:"))));
  }
}

// A user looks for what he gave, so a refusal never blames defaults alone.
TEST_F(Rules, BlameAFlagThatIsGiven) {
  for (const FlagTable::Flag& flag : flags.flags()) {
    const std::string args = given(flag) + needs_of(flag), message = refused(args);
    bool is_named = message.empty();
    for (const std::string& word : words(args))
      is_named |= word.starts_with("--") && message.find(word) != std::string::npos;
    EXPECT_TRUE(is_named) << args << ": " << message;
  }
}

TEST_F(Rules, EveryFlagHasAFieldOfItsOwn) {
  std::map<const void*, std::string> fields;
  for (const FlagTable::Flag& flag : flags.flags()) {
    const void* field = std::visit([](auto* p) -> const void* { return p; }, flag.field);
    const auto [other, is_new] = fields.emplace(field, flag.name);
    EXPECT_TRUE(is_new) << flag.name << " sets the field of " << other->second;
  }
}

TEST(Refusals, AreThoseOfTheList) {
  expect_refusals("refusals.txt", [](const std::string& line) {
    const size_t colon = line.find(": ");  // behind a number of ranks
    return colon < 3 ? refused(line.substr(colon + 2), std::stoi(line)) : refused(line);
  });
}

TEST(Refusals, OfARunWithoutData) {
  GptCommandLine line;
  line.read("");
  line.config.data.data_path.clear();
  EXPECT_EQ(refusal([&] { validate(line.config, 1); }), "give --data-path PREFIX, or --mock-data");
  EXPECT_THAT(refused("--" + std::string(5000, 'x')), StartsWith("unknown flag --xxx"));
}

}  // namespace
}  // namespace anymesh
