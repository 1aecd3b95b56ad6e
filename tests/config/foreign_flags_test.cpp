// Flags of other programs: those that are refused, and command lines that are taken as they stand.
#include "framework/config/foreign_flags.h"

#include <algorithm>
#include <fstream>

#include "framework/util/format.h"
#include "tests/config/support.h"

namespace anymesh {
namespace {

TEST(ForeignFlags, AreIgnoredOrRefusedAsListed) {
  for (const Foreign& foreign : foreign_flags()) {
    for (const std::string_view flag : split(foreign.names, '|')) {
      const std::string name = "--" + std::string(flag);
      const std::string answer = refused(foreign.takes_value ? name + " 12345" : name);
      if (foreign.ignored()) {
        EXPECT_EQ(answer, "");
      } else {
        EXPECT_THAT(answer, HasSubstrs(name, std::string(foreign.reason)));
      }
    }
  }
}

TEST(ForeignFlags, HideNoFlagOfOurs) {
  const GptCommandLine line;
  for (const Foreign& foreign : foreign_flags()) {
    for (const std::string_view flag : split(foreign.names, '|'))
      EXPECT_EQ(line.flags.find(flag), nullptr) << flag;
  }
}

TEST(Synonyms, AreNoFlagsAndNameOnlyFlags) {
  const GptCommandLine line;
  for (const Synonym& synonym : synonyms()) {
    for (const std::string_view name : split(synonym.names, '|')) {
      EXPECT_EQ(line.flags.find(name), nullptr) << name;
      EXPECT_EQ(find_foreign(foreign_flags(), name), nullptr) << name;
      EXPECT_EQ(name.find('_'), std::string_view::npos) << name;
      EXPECT_THAT(refused("--" + std::string(name)), EndsWith("; " + std::string(synonym.advice)));
    }
  }
}

// The command lines and JSON files of the checkpoints that Megatron-DeepSpeed wrote.
struct MegatronRun {
  const char* name;
  int tp, pp, zero_stage;
  bool bf16;
};

TEST(MegatronRuns, AreAcceptedAsTheyStand) {
  const MegatronRun runs[] = {
      {"z0-fp32-tp2dp2", 2, 1, 0, false},
      {"z1-fp32-tp2pp2dp1", 2, 2, 1, false},
      {"z1-bf16-tp1pp1dp2", 1, 1, 1, true},
      {"z1-bf16-tp2pp2dp1", 2, 2, 1, true},
      {"z1-bf16-tp2pp2dp1-vocab257-headqkv", 2, 2, 1, true},
      {"z1-bf16-tp2pp1dp1-llama", 2, 1, 1, true},
      {"z2-bf16-tp2dp2-nopipe", 2, 1, 2, true},
      {"z3-bf16-dp2-nopipe", 1, 1, 3, true},
  };
  for (const MegatronRun& run : runs) {
    SCOPED_TRACE(run.name);
    const std::string path = std::string(ANYMESH_TEST_DATA "/flags/") + run.name;
    std::ifstream file(path + ".txt");
    std::ostringstream text;
    text << file.rdbuf();
    std::vector<std::string> args = words(text.str());
    ASSERT_FALSE(args.empty());
    std::replace(args.begin(), args.end(), std::string("ds_config.json"), path + ".json");
    GptCommandLine line;
    parse(line.flags, line.config, args);
    const Config& config = line.config;
    validate(config, line.gpt, run.tp * run.pp * 2);
    EXPECT_EQ(config.parallel.tp, run.tp);
    EXPECT_EQ(config.parallel.pp, run.pp);
    EXPECT_EQ(config.engine.zero.stage, run.zero_stage);
    EXPECT_EQ(config.precision.bf16, run.bf16);
    EXPECT_EQ(config.batch.global_batch_size, 8);
    EXPECT_EQ(config.engine.schedule.max_lr, 1e-3);
  }
}

}  // namespace
}  // namespace anymesh
