#include "framework/config/parse.h"

#include <fstream>
#include <map>

#include "tests/config/gpt_command_line.h"
#include "tests/config/support.h"
#include "tests/support/temp_folder.h"

namespace anymesh {
namespace {

using testing::HasSubstr;

class ParseTest : public testing::Test, protected GptCommandLine {};

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
  EXPECT_EQ(config.engine.zero.stage, 1);
  EXPECT_EQ(config.engine.zero.offload.optimizer, "nvme");
  EXPECT_EQ(config.engine.zero.offload.param, "cpu");
  EXPECT_EQ(config.engine.zero.offload.nvme_path, "disk");
  EXPECT_EQ(config.batch.micro_batch_size, 4);
  EXPECT_EQ(config.batch.global_batch_size, 48);
  EXPECT_EQ(config.batch.train_iters, 5);
  EXPECT_EQ(config.engine.schedule.max_lr, 1e-3);
  EXPECT_EQ(config.engine.schedule.min_lr, 1e-4);
  EXPECT_EQ(config.engine.schedule.style, "cosine");
  EXPECT_EQ(config.schedule.lr_decay_iters, 6);
  EXPECT_EQ(config.schedule.lr_warmup_iters, 7);
  EXPECT_EQ(config.engine.zero.weight_decay, 0.1);
  EXPECT_EQ(config.engine.zero.adam.beta1, 0.8);
  EXPECT_EQ(config.engine.zero.adam.beta2, 0.95);
  EXPECT_EQ(config.engine.zero.adam.eps, 1e-6);
  EXPECT_EQ(config.engine.zero.clip_grad, 0.5);
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
  EXPECT_FALSE(config.engine.check_for_nan);
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
}

TEST_F(ParseTest, EverySampleAndMockFlagReachesItsField) {
  read(
      words("--train-samples 5 --lr-decay-samples 6 --lr-warmup-samples 7 --mock-data "
            "--vocab-size 8"));
  EXPECT_EQ(config.batch.train_samples, 5);
  EXPECT_EQ(config.schedule.lr_decay_samples, 6);
  EXPECT_EQ(config.schedule.lr_warmup_samples, 7);
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
  EXPECT_EQ(config.schedule.lr_warmup_fraction, 0.25);
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

// The settings are Megatron's args as its parse_args() leaves them.
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
  read({"--data-path", "0.7", "a b", "0.3", "c", "--lr", "1"});
  EXPECT_EQ(config.data.data_path, (std::vector<std::string>{"0.7", "a b", "0.3", "c"}));
  EXPECT_EQ(config.engine.schedule.max_lr, 1);
}

// Scripts append "$@", so a flag may come again.
TEST_F(ParseTest, OfAFlagGivenAgainTheLastValueCounts) {
  const ParseResult result =
      read(words("--data-path a b --freeze x --lr 1 --num-workers 1 --bf16 --data-path c d "
                 "--freeze=y --lr=2 --num-workers 3 --bf16"));
  EXPECT_EQ(config.data.data_path, (std::vector<std::string>{"c", "d"}));
  EXPECT_EQ(config.engine.freeze, std::vector<std::string>{"y"});
  EXPECT_EQ(config.engine.schedule.max_lr, 2);
  EXPECT_EQ(flags.origin("data-path"), "--data-path c d");
  EXPECT_EQ(result.notes,
            std::vector<std::string>{"ignored, as they change no result here: --num-workers"});
}

TEST_F(ParseTest, ValuesMayBeLongOrHoldEquals) {
  const std::string path = std::string(100000, 'a') + "=b,c";
  read({"--save=" + path, "--split", "1 2,3"});
  EXPECT_EQ(config.checkpoint.save, path);
  EXPECT_EQ(config.data.split, "1 2,3");
}

using ParseFileTest = TempFolder;

TEST_F(ParseFileTest, AConfigurationThatDoesNotClipIsNoted) {
  const std::string path = folder_ / "ds.json";
  std::ofstream(path) << R"({"zero_optimization": {"stage": 1}})";
  GptCommandLine line, without;
  const ParseResult result = line.read({"--deepspeed_config", path});
  ASSERT_EQ(result.notes.size(), 1u);
  EXPECT_THAT(result.notes[0], HasSubstr(path + " has no gradient_clipping"));
  EXPECT_TRUE(without.read({"--deepspeed_config", path, "--clip-grad", "0"}).notes.empty());
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
    line.read(words(args));
    EXPECT_EQ(line.config.data.tokenizer_type, type) << args;
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

TEST_F(ParseTest, GlooIsMpi) {
  const ParseResult result = read(words("--distributed-backend gloo"));
  EXPECT_EQ(config.device.distributed_backend, "mpi");
  EXPECT_EQ(result.notes, std::vector<std::string>{"--distributed-backend gloo: here that is mpi"});
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

}  // namespace
}  // namespace anymesh
