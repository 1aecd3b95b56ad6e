#include "framework/config/parse.h"

#include <fstream>
#include <map>

#include "framework/util/format.h"
#include "tests/config/support.h"
#include "tests/support/temp_folder.h"

namespace anymesh {
namespace {

class ParseTest : public testing::Test, protected GptCommandLine {};

TEST_F(ParseTest, DefaultsAreMegatrons) {
  const ParseResult result = read("");
  const std::map<std::string, std::string> expected = {
      {"tensor_model_parallel_size", "1"},
      {"pipeline_model_parallel_size", "1"},
      {"lr_decay_style", "linear"},
      {"min_lr", "0"},
      {"weight_decay", "0.01"},
      {"adam_beta1", "0.9"},
      {"adam_beta2", "0.999"},
      {"adam_eps", "1e-08"},
      {"clip_grad", "1"},
      {"split", "969, 30, 1"},
      {"seed", "1234"},
      {"eval_interval", "1000"},
      {"eval_iters", "100"},
      {"log_interval", "100"},
      {"init_method_std", "0.02"},
      {"attention_dropout", "0.1"},
      {"hidden_dropout", "0.1"},
      {"layernorm_epsilon", "1e-05"},
      {"bias_gelu_fusion", "true"},
      {"make_vocab_size_divisible_by", "128"},
      {"bf16", "false"},
      {"no_load_rng", "false"},
      {"check_for_nan_in_loss_and_grad", "true"},
  };
  std::map<std::string, std::string> settings;
  for (const Setting& setting : result.settings) settings[setting.dest] = setting.text;
  for (const auto& [dest, text] : expected) EXPECT_EQ(settings[dest], text) << dest;
  EXPECT_TRUE(result.notes.empty());
  EXPECT_TRUE(result.text.empty());
}

// The settings are Megatron's args as its parse_args() leaves them.
TEST_F(ParseTest, ResolvedSettingsAreMegatronsArgs) {
  read("--swiglu --disable-bias-linear --use-rotary-position-embeddings");
  gpt = resolved(gpt);
  std::map<std::string, Setting::Value> args;
  for (const Setting& setting : flags.settings()) args[setting.dest] = setting.value;
  EXPECT_EQ(args.at("ffn_hidden_size"), Setting::Value(int64_t{128}));
  EXPECT_EQ(args.at("num_key_value_heads"), Setting::Value(int64_t{4}));
  EXPECT_EQ(args.at("rope_theta"), Setting::Value(int64_t{10000}));
  EXPECT_EQ(args.at("rotary_percent"), Setting::Value(1.0));
  EXPECT_EQ(args.at("use_rotary_position_embeddings"), Setting::Value(true));
  EXPECT_EQ(args.at("use_rope_scaling"), Setting::Value(false));
  EXPECT_EQ(args.at("rope_scaling_factor"), Setting::Value(8.0));
  EXPECT_EQ(args.at("rotary_seq_len_interpolation_factor"), Setting::Value(int64_t{1}));
  gpt.rope_theta = 3580165449;
  gpt.rotary_seq_len_interpolation_factor = 2.5;
  for (const Setting& setting : flags.settings()) args[setting.dest] = setting.value;
  EXPECT_EQ(args.at("rope_theta"), Setting::Value(int64_t{3580165449}));
  EXPECT_EQ(args.at("rotary_seq_len_interpolation_factor"), Setting::Value(2.5));
  EXPECT_EQ(args.at("swiglu"), Setting::Value(true));
  EXPECT_EQ(args.at("normalization"), Setting::Value(std::string("layernorm")));
  for (const char* dest : {"add_position_embedding", "add_bias_linear", "bias_gelu_fusion"}) {
    EXPECT_EQ(args.at(dest), Setting::Value(false)) << dest;
  }
}

TEST_F(ParseTest, ListsTakeAllValuesUpToTheNextFlag) {
  read(std::vector<std::string>{"--data-path", "0.7", "a b", "0.3", "c", "--lr", "1"});
  EXPECT_EQ(config.data.data_path, (std::vector<std::string>{"0.7", "a b", "0.3", "c"}));
  EXPECT_EQ(config.engine.schedule.max_lr, 1);
}

// Scripts append "$@", so a flag may come again.
TEST_F(ParseTest, OfAFlagGivenAgainTheLastValueCounts) {
  const ParseResult result = read(
      "--data-path a b --freeze x --lr 1 --num-workers 1 --bf16 --data-path c d "
      "--freeze=y --lr=2 --num-workers 3 --bf16");
  EXPECT_EQ(config.data.data_path, (std::vector<std::string>{"c", "d"}));
  EXPECT_EQ(config.engine.freeze, std::vector<std::string>{"y"});
  EXPECT_EQ(config.engine.schedule.max_lr, 2);
  EXPECT_EQ(flags.origin("data-path"), "--data-path c d");
  EXPECT_EQ(result.notes,
            std::vector<std::string>{"ignored, as they change no result here: --num-workers"});
}

TEST_F(ParseTest, ValuesMayBeLongOrHoldEquals) {
  const std::string path = std::string(100000, 'a') + "=b,c";
  read(std::vector<std::string>{"--save=" + path, "--split", "1 2,3"});
  EXPECT_EQ(config.checkpoint.save, path);
  EXPECT_EQ(config.data.split, "1 2,3");
}

using ParseFileTest = TempFolder;

TEST_F(ParseFileTest, AConfigurationThatDoesNotClipIsNoted) {
  const std::string path = folder_ / "ds.json";
  std::ofstream(path) << R"({"zero_optimization": {"stage": 1}})";
  GptCommandLine line, without;
  const ParseResult result = line.read("--deepspeed_config " + path);
  ASSERT_EQ(result.notes.size(), 1u);
  EXPECT_THAT(result.notes[0], HasSubstr(path + " has no gradient_clipping"));
  EXPECT_TRUE(without.read("--clip-grad 0 --deepspeed_config " + path).notes.empty());
}

TEST(Tokenizer, FollowsFromTheFiles) {
  const std::map<std::string, std::string> expected = {
      {"--lr 1", "ByteLevelTokenizer"},
      {"--vocab-file v --merge-file m", "GPT2BPETokenizer"},
      {"--mock-data --vocab-size 9", "NullTokenizer"},
      {"--tokenizer-type NullTokenizer --vocab-size 9", "NullTokenizer"},
  };
  for (const auto& [args, type] : expected) {
    GptCommandLine line;
    line.read(args);
    EXPECT_EQ(line.config.data.tokenizer_type, type) << args;
  }
}

TEST_F(ParseTest, OffloadToWhereEverythingIsIsNoted) {
  const ParseResult result = read("--offload-optimizer cpu --offload-param none");
  ASSERT_EQ(result.notes.size(), 1u);
  EXPECT_THAT(result.notes[0], HasSubstr("--offload-optimizer cpu: this build trains in"));
}

TEST_F(ParseTest, IgnoredMegatronFlagsAreNotedOnOneLine) {
  const ParseResult result =
      read("--deepspeed --num-workers 2 --lazy-mpu-init 1 --DDP-impl local --lr 1");
  ASSERT_EQ(result.notes.size(), 1u);
  EXPECT_EQ(result.notes[0],
            "ignored, as they change no result here: --deepspeed, --num-workers, "
            "--lazy-mpu-init, --DDP-impl");
}

TEST_F(ParseTest, GlooIsMpi) {
  const ParseResult result = read("--distributed-backend gloo");
  EXPECT_EQ(config.device.distributed_backend, "mpi");
  EXPECT_EQ(result.notes, std::vector<std::string>{"--distributed-backend gloo: here that is mpi"});
  GptCommandLine threads;
  EXPECT_EQ(threads.read("--distributed-backend gloo --local-ranks 2").notes,
            std::vector<std::string>{"--distributed-backend gloo: here that is memory"});
  EXPECT_EQ(threads.config.device.distributed_backend, "");
}

TEST_F(ParseTest, HelpShowsEveryFlagWithItsDefault) {
  const std::string help = read("--lr x --help").text;
  // cxxopts wraps lines: compare without white space.
  const auto squeezed = [](const std::string& text) {
    std::string letters;
    for (const std::string& word : words(text)) letters += word;
    return letters;
  };
  const std::string text = squeezed(help);
  for (const FlagTable::Flag& flag : flags.flags()) {
    std::string about = flag.help;
    if (!flag.rule.choices.empty()) about += "; one of " + joined(flag.rule.choices);
    for (const std::string& need : flag.rule.needs)
      if (condition_of(need) == need) about += "; needs " + need;
    const std::string& shown = flag.rule.shown;
    about += shown == "required" ? "(required)" : "(default:" + shown + ")";
    const size_t at = text.find("--" + flag.name);
    ASSERT_NE(at, std::string::npos) << flag.name;
    EXPECT_NE(text.find(squeezed(about), at), std::string::npos) << flag.name;
    EXPECT_THAT(help, HasSubstr(" " + flag.group + " options:"));
  }
  EXPECT_THAT(help, HasSubstr("--no-masked-softmax-fusion"));
  EXPECT_EQ(read("-h").text, help);
}

TEST_F(ParseTest, VersionNamesTheProgram) {
  EXPECT_THAT(read("--version").text, testing::MatchesRegex("pretrain_gpt [0-9.]+\n"));
}

TEST(OwnParts, HaveNoFlagsOfTheFrameworks) {
  for (const auto& part :
       {std::pair(OwnParts{.data = true},
                  "--data-path x|--mock-data|--split 1,1|--tokenizer-type NullTokenizer|"
                  "--vocab-file x|--tokenizer-model x|--vocab-size 3"),
        {OwnParts{.schedule = true},
         "--lr-decay-style cosine|--min-lr 0|--lr-decay-iters 3|--lr-warmup-iters 3|"
         "--lr-warmup-fraction 0.1|--lr-wsd-decay-style linear|--lr-wsd-decay-samples 3"}}) {
    const OwnParts& own = part.first;
    const auto read = [&own](const std::string& text, const auto& check) {
      Config config;
      FlagTable flags("pretrain_vit", "description");
      add_flags(flags, config, own);
      const std::string run = own.data ? "" : " --data-path x";
      check(parse(flags, config, words(text + " --lr 1e-3 --train-iters 3" + run)), config);
    };
    const auto ignore = [](const ParseResult&, const Config&) {};
    for (const std::string_view flag : split(part.second, '|')) {
      const std::string text(flag), name = text.substr(0, text.find(' '));
      EXPECT_THAT(refusal([&] { read(text, ignore); }),
                  testing::MatchesRegex(text + ": this program brings .* of its own.*; leave the "
                                               "flag out"));
      read("--help", [&](const ParseResult& result, const Config&) {
        EXPECT_THAT(result.text, Not(HasSubstr("\n      " + name + " ")));
      });
      read("", [&](const ParseResult& result, const Config& config) {
        for (const Setting& setting : result.settings) EXPECT_NE("--" + setting.flag, name);
        EXPECT_NO_THROW(validate(config, 1));
      });
    }
  }
}

}  // namespace
}  // namespace anymesh
