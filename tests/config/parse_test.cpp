#include "framework/config/parse.h"

#include <algorithm>
#include <fstream>
#include <map>

#include "framework/config/command_line.h"
#include "framework/config/foreign_flags.h"
#include "models/gpt/gpt_config.h"
#include "tests/config/support.h"

namespace anymesh {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class ParseTest : public testing::Test {
 protected:
  ParseTest() {
    add_flags(flags, config);
    add_flags(flags, gpt);
  }

  ParseResult read(const std::vector<std::string>& args) { return parse(flags, config, args); }

  Config config;
  GptConfig gpt;
  FlagTable flags{"pretrain_gpt", "description"};
};

// Parses into a fresh table and answers what was refused.
std::string refused(const std::string& text) {
  Config config;
  GptConfig gpt;
  FlagTable flags("pretrain_gpt", "description");
  add_flags(flags, config);
  add_flags(flags, gpt);
  return refusal([&] { parse(flags, config, words(text)); });
}

TEST_F(ParseTest, DefaultsAreMegatrons) {
  const ParseResult result = read({});
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

TEST_F(ParseTest, EveryFlagReachesItsField) {
  read(
      words("--tensor-model-parallel-size 2 --pipeline-model-parallel-size=3 --zero-stage 1 "
            "--offload-optimizer nvme --offload-param cpu --nvme-path disk "
            "--micro-batch-size 4 --global-batch-size 48 --train-iters 5 --lr 1e-3 --min-lr 1e-4 "
            "--lr-decay-style cosine --lr-decay-iters 6 --lr-warmup-iters 7 --weight-decay 0.1 "
            "--adam-beta1 0.8 --adam-beta2 0.95 --adam-eps 1e-6 --clip-grad 0.5 --bf16 "
            "--data-path corpus --split 9,1,0 --tokenizer-type GPT2BPETokenizer --vocab-file v "
            "--merge-file m --save s --save-interval 8 --load l --universal-checkpoint "
            "--no-load-optim --no-load-rng --no-load-lr-state --finetune --exit-interval 9 "
            "--seed 10 --eval-interval 11 --eval-iters 12 --log-interval 13 --loss-csv c "
            "--tensorboard-dir tb "
            "--profile-step 4 --trace t "
            "--no-check-for-nan-in-loss-and-grad"));
  EXPECT_EQ(config.parallel.tp, 2);
  EXPECT_EQ(config.parallel.pp, 3);
  EXPECT_EQ(config.parallel.zero_stage, 1);
  EXPECT_EQ(config.offload.optimizer, "nvme");
  EXPECT_EQ(config.offload.param, "cpu");
  EXPECT_EQ(config.offload.nvme_path, "disk");
  EXPECT_EQ(config.batch.micro_batch_size, 4);
  EXPECT_EQ(config.batch.global_batch_size, 48);
  EXPECT_EQ(config.batch.train_iters, 5);
  EXPECT_EQ(config.optimizer.lr, 1e-3);
  EXPECT_EQ(config.optimizer.min_lr, 1e-4);
  EXPECT_EQ(config.optimizer.lr_decay_style, "cosine");
  EXPECT_EQ(config.optimizer.lr_decay_iters, 6);
  EXPECT_EQ(config.optimizer.lr_warmup_iters, 7);
  EXPECT_EQ(config.optimizer.weight_decay, 0.1);
  EXPECT_EQ(config.optimizer.adam_beta1, 0.8);
  EXPECT_EQ(config.optimizer.adam_beta2, 0.95);
  EXPECT_EQ(config.optimizer.adam_eps, 1e-6);
  EXPECT_EQ(config.optimizer.clip_grad, 0.5);
  EXPECT_TRUE(config.precision.bf16);
  EXPECT_EQ(config.data.data_path, std::vector<std::string>{"corpus"});
  EXPECT_EQ(config.data.split, "9,1,0");
  EXPECT_EQ(config.data.tokenizer_type, "GPT2BPETokenizer");
  EXPECT_EQ(config.data.vocab_file, "v");
  EXPECT_EQ(config.data.merge_file, "m");
  EXPECT_EQ(config.checkpoint.save, "s");
  EXPECT_EQ(config.checkpoint.save_interval, 8);
  EXPECT_EQ(config.checkpoint.load, "l");
  EXPECT_TRUE(config.checkpoint.universal_checkpoint);
  EXPECT_TRUE(config.checkpoint.no_load_optim);
  EXPECT_TRUE(config.checkpoint.no_load_rng);
  EXPECT_TRUE(config.checkpoint.no_load_lr_state);
  EXPECT_TRUE(config.checkpoint.finetune);
  EXPECT_EQ(config.checkpoint.exit_interval, 9);
  EXPECT_EQ(config.run.seed, 10u);
  EXPECT_EQ(config.run.eval_interval, 11);
  EXPECT_EQ(config.run.eval_iters, 12);
  EXPECT_EQ(config.run.log_interval, 13);
  EXPECT_EQ(config.run.loss_csv, "c");
  EXPECT_EQ(config.run.tensorboard_dir, "tb");
  EXPECT_EQ(config.run.profile_step, 4);
  EXPECT_EQ(config.run.trace, "t");
  EXPECT_FALSE(config.run.check_for_nan);
}

TEST_F(ParseTest, LossScaleBelongsToFp16) {
  read(
      words("--fp16 --initial-loss-scale 4096 --min-loss-scale 2 --loss-scale-window 50 "
            "--hysteresis 3 --loss-scale 0"));
  EXPECT_TRUE(config.precision.fp16);
  EXPECT_EQ(config.precision.loss_scale, 0);
  EXPECT_EQ(config.precision.initial_loss_scale, 4096);
  EXPECT_EQ(config.precision.min_loss_scale, 2);
  EXPECT_EQ(config.precision.loss_scale_window, 50);
  EXPECT_EQ(config.precision.hysteresis, 3);
  EXPECT_EQ(refused("--fp16 --bf16"), "--fp16 has no effect beside --bf16; keep one of them");
  EXPECT_EQ(refused("--loss-scale 8"), "--loss-scale 8 has no effect without --fp16");
  EXPECT_EQ(refused("--trace t.json"), "--trace t.json has no effect without --profile-step");
  EXPECT_EQ(refused("--fp16 --hysteresis 2 --loss-scale 8"),
            "--hysteresis 2 has no effect with a static --loss-scale");
}

TEST_F(ParseTest, EverySampleAndMockFlagReachesItsField) {
  read(
      words("--train-samples 5 --lr-decay-samples 6 --lr-warmup-samples 7 --mock-data "
            "--vocab-size 8"));
  EXPECT_EQ(config.batch.train_samples, 5);
  EXPECT_EQ(config.optimizer.lr_decay_samples, 6);
  EXPECT_EQ(config.optimizer.lr_warmup_samples, 7);
  EXPECT_TRUE(config.data.mock_data);
  EXPECT_EQ(config.data.vocab_size, 8);
}

TEST_F(ParseTest, EveryGptFlagReachesItsField) {
  read(
      words("--num-layers 2 --hidden-size 3 --num-attention-heads 4 --ffn-hidden-size 5 "
            "--seq-length 6 --max-position-embeddings 7 --make-vocab-size-divisible-by 8 "
            "--init-method-std 0.3 --attention-dropout 0.4 --hidden-dropout 0.5 "
            "--layernorm-epsilon 1e-6 --untie-embeddings-and-output-weights "
            "--no-bias-gelu-fusion --lr-warmup-fraction 0.25 --num-key-value-heads 9 --swiglu "
            "--disable-bias-linear --normalization rmsnorm --embed-layernorm "
            "--no-position-embedding --use-rotary-position-embeddings --rotary-percent 0.75 "
            "--rotary-position-embeddings-theta 500000 --position-embedding-type alibi "
            "--use-rope-scaling --rope-scaling-factor 32 --rotary-seq-len-interpolation-factor 4"));
  EXPECT_EQ(gpt.num_layers, 2);
  EXPECT_EQ(gpt.hidden_size, 3);
  EXPECT_EQ(gpt.num_attention_heads, 4);
  EXPECT_EQ(gpt.ffn_hidden_size, 5);
  EXPECT_EQ(gpt.seq_length, 6);
  EXPECT_EQ(gpt.max_position_embeddings, 7);
  EXPECT_EQ(gpt.make_vocab_size_divisible_by, 8);
  EXPECT_EQ(gpt.init_method_std, 0.3);
  EXPECT_EQ(gpt.attention_dropout, 0.4);
  EXPECT_EQ(gpt.hidden_dropout, 0.5);
  EXPECT_EQ(gpt.layernorm_epsilon, 1e-6);
  EXPECT_TRUE(gpt.untie_embeddings_and_output_weights);
  EXPECT_FALSE(gpt.bias_gelu_fusion);
  EXPECT_EQ(config.optimizer.lr_warmup_fraction, 0.25);
  EXPECT_EQ(gpt.num_key_value_heads, 9);
  EXPECT_TRUE(gpt.swiglu);
  EXPECT_FALSE(gpt.add_bias_linear);
  EXPECT_EQ(gpt.normalization, "rmsnorm");
  EXPECT_TRUE(gpt.embed_layernorm);
  EXPECT_FALSE(gpt.add_position_embedding);
  EXPECT_TRUE(gpt.use_rotary_position_embeddings);
  EXPECT_EQ(gpt.rotary_percent, 0.75);
  EXPECT_EQ(gpt.rope_theta, 500000);
  EXPECT_TRUE(gpt.use_rope_scaling);
  EXPECT_EQ(gpt.rope_scaling_factor, 32);
  EXPECT_EQ(gpt.rotary_seq_len_interpolation_factor, 4);
  EXPECT_EQ(gpt.position_embedding_type, "alibi");
}

// Megatron's args, as they are when its parse_args() is done with them.
TEST_F(ParseTest, ResolvedSettingsAreMegatronsArgs) {
  read(
      words("--num-layers 2 --hidden-size 64 --num-attention-heads 4 --swiglu "
            "--disable-bias-linear --use-rotary-position-embeddings"));
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
  EXPECT_EQ(args.at("swiglu"), Setting::Value(true));
  EXPECT_EQ(args.at("normalization"), Setting::Value(std::string("layernorm")));
  for (const char* dest : {"add_position_embedding", "add_bias_linear", "bias_gelu_fusion"}) {
    EXPECT_EQ(args.at(dest), Setting::Value(false)) << dest;
  }
}

TEST_F(ParseTest, ListsTakeAllValuesUpToTheNextFlag) {
  read({"--data-path", "0.7", "a b", "0.3", "c", "--lr", "1"});
  EXPECT_EQ(config.data.data_path, (std::vector<std::string>{"0.7", "a b", "0.3", "c"}));
  EXPECT_EQ(config.optimizer.lr, 1);
}

TEST_F(ParseTest, ValuesMayBeLongOrHoldEquals) {
  const std::string path = std::string(100000, 'a') + "=b,c";
  read({"--save=" + path, "--split", "1 2,3"});
  EXPECT_EQ(config.checkpoint.save, path);
  EXPECT_EQ(config.data.split, "1 2,3");
}

TEST(Tokenizer, FollowsFromTheFiles) {
  const std::map<std::string, std::string> expected = {
      {"--lr 1", "ByteLevelTokenizer"},
      {"--vocab-file v --merge-file m", "GPT2BPETokenizer"},
      {"--mock-data --vocab-size 9", "NullTokenizer"},
      {"--tokenizer-type NullTokenizer --vocab-size 9", "NullTokenizer"},
  };
  for (const auto& [args, type] : expected) {
    Config config;
    FlagTable flags("pretrain_gpt", "");
    add_flags(flags, config);
    parse(flags, config, words(args));
    EXPECT_EQ(config.data.tokenizer_type, type) << args;
  }
}

TEST(Refusals, OfTheCommandLine) {
  EXPECT_EQ(refused("--hiden-size 4"), "unknown flag --hiden-size; did you mean --hidden-size?");
  EXPECT_EQ(refused("--train_iters=4"), "unknown flag --train_iters; did you mean --train-iters?");
  EXPECT_EQ(refused("--train-it 4"), "unknown flag --train-it; did you mean --train-iters?");
  EXPECT_EQ(refused("--deepsped"), "unknown flag --deepsped; did you mean --deepspeed?");
  EXPECT_EQ(refused("--zzzzzzzz 1"), "unknown flag --zzzzzzzz");
  EXPECT_THAT(refused("--" + std::string(5000, 'x')), HasSubstr("unknown flag --xxx"));
  EXPECT_THAT(refused("-lr 1"), HasSubstr("unexpected argument '-l'"));
  EXPECT_THAT(refused("corpus"), HasSubstr("unexpected argument 'corpus'"));
  EXPECT_THAT(refused("--bf16 true"), HasSubstr("unexpected argument 'true'"));
  EXPECT_THAT(refused("-- --bf16"), HasSubstr("unknown flag --bf16"));
  EXPECT_THAT(refused("--bf16=false"), HasSubstr("--bf16 is a switch and takes no value"));
  EXPECT_THAT(refused("--deepspeed=1"), HasSubstr("--deepspeed is a switch and takes no value"));
  EXPECT_THAT(refused("--help=1"), HasSubstr("--help is a switch and takes no value"));
  EXPECT_EQ(refused("--bf16 --lr"), "--lr needs a value");
  EXPECT_EQ(refused("--save --load x"), "--save needs a value, got the flag --load");
  EXPECT_EQ(refused("--data-path --bf16"), "--data-path needs at least one value");
  EXPECT_EQ(refused("--save="), "--save : the value is empty");
  EXPECT_THAT(refused("--lr 1e-3x"), HasSubstr("--lr 1e-3x: expected a number"));
  EXPECT_THAT(refused("--lr-decay-style step"),
              HasSubstr("--lr-decay-style step: expected one of constant, linear, cosine"));
  EXPECT_EQ(refused("--offload-param disk"),
            "--offload-param disk: expected one of none, cpu, nvme");
  EXPECT_THAT(refused("--tokenizer-type HFTokenizer"),
              HasSubstr("--tokenizer-type HFTokenizer: expected one of GPT2BPETokenizer"));
}

// A flag with the other flags that leave it without effect, and what the message must name.
struct Useless {
  const char* args;
  const char* flag;
  const char* reason;
};

TEST(Refusals, OfFlagsWithoutEffect) {
  const Useless cases[] = {
      {"--train-iters 1 --train-samples 2", "--train-iters 1", "--train-samples 2"},
      {"--train-samples 9 --lr-decay-iters 1", "--lr-decay-iters 1", "--lr-decay-samples"},
      {"--train-samples 9 --lr-warmup-iters 1", "--lr-warmup-iters 1", "--lr-warmup-samples"},
      {"--train-iters 9 --lr-decay-samples 1", "--lr-decay-samples 1", "--lr-decay-iters"},
      {"--train-iters 9 --lr-warmup-samples 1", "--lr-warmup-samples 1", "--lr-warmup-iters"},
      {"--lr-warmup-iters 1 --lr-warmup-fraction 0.1", "--lr-warmup-iters 1",
       "--lr-warmup-fraction 0.1"},
      {"--train-samples 9 --lr-warmup-samples 1 --lr-warmup-fraction 0.1", "--lr-warmup-samples 1",
       "--lr-warmup-fraction 0.1"},
      {"--lr-decay-style constant --min-lr 0.1", "--min-lr 0.1", "--lr-decay-style constant"},
      {"--lr-decay-style constant --lr-decay-iters 9", "--lr-decay-iters 9",
       "--lr-decay-style constant"},
      {"--train-samples 9 --lr-decay-style constant --lr-decay-samples 9", "--lr-decay-samples 9",
       "--lr-decay-style constant"},
      {"--mock-data --vocab-size 9 --data-path x y", "--data-path x y", "--mock-data"},
      {"--mock-data --vocab-size 9 --split 1,0,0", "--split 1,0,0", "--mock-data"},
      {"--mock-data --vocab-size 9 --vocab-file v", "--vocab-file v", "--mock-data"},
      {"--mock-data --vocab-size 9 --merge-file m", "--merge-file m", "--mock-data"},
      {"--mock-data --vocab-size 9 --tokenizer-type ByteLevelTokenizer",
       "--tokenizer-type ByteLevelTokenizer", "--mock-data"},
      {"--merge-file m", "--merge-file m", "ByteLevelTokenizer"},
      {"--tokenizer-model m", "--tokenizer-model m", "SentencePieceTokenizer"},
      {"--tokenizer-type SentencePieceTokenizer --tokenizer-model m --vocab-file v",
       "--vocab-file v", "SentencePieceTokenizer"},
      {"--tokenizer-type ByteLevelTokenizer --vocab-file v", "--vocab-file v",
       "ByteLevelTokenizer"},
      {"--vocab-size 9", "--vocab-size 9", "ByteLevelTokenizer"},
      {"--vocab-size 9 --vocab-file v", "--vocab-size 9", "GPT2BPETokenizer"},
      {"--nvme-path d --offload-optimizer cpu", "--nvme-path d", "--offload-optimizer nvme"},
      {"--save-interval 5", "--save-interval 5", "without --save"},
      {"--universal-checkpoint", "--universal-checkpoint", "without --load"},
      {"--finetune", "--finetune", "without --load"},
      {"--no-load-optim", "--no-load-optim", "without --load"},
      {"--no-load-rng", "--no-load-rng", "without --load"},
      {"--no-load-lr-state", "--no-load-lr-state", "without --load"},
  };
  for (const Useless& c : cases) {
    EXPECT_THAT(refused(c.args),
                AllOf(HasSubstr(std::string(c.flag) + " has no effect"), HasSubstr(c.reason)))
        << c.args;
  }
}

TEST(Combinations, ThatMegatronScriptsUseAreFine) {
  for (const char* args : {
           "--train-samples 9 --lr-warmup-iters 0",
           "--train-samples 9 --lr-warmup-fraction 0.1 --lr-decay-samples 9",
           "--lr-decay-style constant --lr-decay-iters 9 --lr-warmup-fraction 0.1",
           "--eval-iters 0 --eval-interval 1000",
           "--load x --finetune --no-load-optim --no-load-rng",
           "--mock-data --vocab-size 9 --tokenizer-type NullTokenizer",
           "--optimizer adam --data-impl infer --num-experts 1",
       }) {
    EXPECT_EQ(refused(args), "") << args;
  }
}

TEST_F(ParseTest, OffloadToWhereEverythingIsIsNoted) {
  const ParseResult result = read(words("--offload-optimizer cpu --offload-param none"));
  ASSERT_EQ(result.notes.size(), 1u);
  EXPECT_THAT(result.notes[0], HasSubstr("--offload-optimizer cpu: this build trains in"));
}

TEST_F(ParseTest, IgnoredMegatronFlagsAreNotedOnOneLine) {
  const ParseResult result =
      read(words("--deepspeed --num-workers 2 --lazy-mpu-init 1 --DDP-impl local --lr 1"));
  ASSERT_EQ(result.notes.size(), 1u);
  EXPECT_EQ(result.notes[0],
            "ignored, as they change no result here: --deepspeed, --num-workers, "
            "--lazy-mpu-init, --DDP-impl");
}

TEST_F(ParseTest, DeviceAndBackend) {
  EXPECT_EQ(refused("--device cuda --distributed-backend mpi"), "");
  EXPECT_EQ(refused("--device gpu"), "--device gpu: expected one of cpu, cuda");
  EXPECT_EQ(refused("--distributed-backend ccl"),
            "--distributed-backend ccl: expected one of mpi, nccl, gloo");
  const ParseResult result = read(words("--distributed-backend gloo"));
  EXPECT_EQ(config.device.distributed_backend, "mpi");
  EXPECT_EQ(result.notes, std::vector<std::string>{"--distributed-backend gloo: here that is mpi"});
}

TEST(ForeignFlags, AreIgnoredOrRefusedAsListed) {
  for (const ForeignFlag& flag : foreign_flags()) {
    const std::string name = "--" + std::string(flag.name);
    const std::string answer = refused(flag.takes_value ? name + " 12345" : name);
    if (flag.reason.empty()) {
      EXPECT_EQ(answer, "");
    } else {
      EXPECT_THAT(answer, AllOf(HasSubstr(name), HasSubstr(std::string(flag.reason))));
    }
  }
  EXPECT_EQ(refused("--data-impl lazy"),
            "--data-impl lazy: only Megatron's .bin/.idx files are read; accepted: mmap|infer");
  EXPECT_THAT(refused("--data-impl mmap|infer"), HasSubstr("--data-impl mmap|infer: only"));
  EXPECT_THAT(refused("--rampup-batch-size 16 16 1000"), HasSubstr("--rampup-batch-size 16: "));
}

TEST(ForeignFlags, HideNoFlagOfOurs) {
  Config config;
  GptConfig gpt;
  FlagTable flags("pretrain_gpt", "");
  add_flags(flags, config);
  add_flags(flags, gpt);
  for (const ForeignFlag& flag : foreign_flags()) {
    EXPECT_EQ(flags.find(flag.name), nullptr) << flag.name;
  }
}

TEST_F(ParseTest, HelpShowsEveryFlagWithItsDefault) {
  const std::string help = read({"--lr", "x", "--help"}).text;
  // cxxopts wraps lines: compare without white space.
  const auto squeezed = [](const std::string& text) {
    std::string letters;
    for (const std::string& word : words(text)) letters += word;
    return letters;
  };
  const std::string text = squeezed(help);
  for (const FlagTable::Flag& flag : flags.flags()) {
    const bool required = flag.default_text == "required";
    const std::string about =
        flag.help + (required ? "(required)" : "(default:" + flag.default_text + ")");
    const size_t at = text.find("--" + flag.name);
    ASSERT_NE(at, std::string::npos) << flag.name;
    EXPECT_NE(text.find(squeezed(about), at), std::string::npos) << flag.name;
    EXPECT_THAT(help, HasSubstr(" " + flag.group + " options:"));
  }
  EXPECT_THAT(help, HasSubstr("--no-masked-softmax-fusion"));
  EXPECT_EQ(read({"-h"}).text, help);
}

TEST_F(ParseTest, VersionNamesTheProgram) {
  EXPECT_THAT(read({"--version"}).text, testing::MatchesRegex("pretrain_gpt [0-9.]+\n"));
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
    Config config;
    GptConfig gpt;
    FlagTable flags("pretrain_gpt", "");
    add_flags(flags, config);
    add_flags(flags, gpt);
    parse(flags, config, args);
    validate(config, gpt, run.tp * run.pp * 2);
    EXPECT_EQ(config.parallel.tp, run.tp);
    EXPECT_EQ(config.parallel.pp, run.pp);
    EXPECT_EQ(config.parallel.zero_stage, run.zero_stage);
    EXPECT_EQ(config.precision.bf16, run.bf16);
    EXPECT_EQ(config.batch.global_batch_size, 8);
    EXPECT_EQ(config.optimizer.lr, 1e-3);
  }
}

}  // namespace
}  // namespace anymesh
