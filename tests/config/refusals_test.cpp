// Command lines that are refused, and other programs' that are taken as they stand.
#include <algorithm>
#include <fstream>

#include "framework/config/foreign_flags.h"
#include "framework/util/format.h"
#include "tests/config/gpt_command_line.h"
#include "tests/config/support.h"

namespace anymesh {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;

// Parses into a fresh table and returns the refusal.
std::string refused(const std::string& text) {
  GptCommandLine line;
  return refusal([&] { line.read(words(text)); });
}

TEST(Refusals, OfTheCommandLine) {
  EXPECT_EQ(refused("--hiden-size 4"), "unknown flag --hiden-size; did you mean --hidden-size?");
  EXPECT_EQ(refused("--train_iters=4"), "unknown flag --train_iters; did you mean --train-iters?");
  EXPECT_EQ(refused("--train-it 4"), "unknown flag --train-it; did you mean --train-iters?");
  EXPECT_EQ(refused("--deepsped"), "unknown flag --deepsped; did you mean --deepspeed?");
  EXPECT_EQ(refused("--zzzzzzzz 1"), "unknown flag --zzzzzzzz");
  EXPECT_THAT(refused("--" + std::string(5000, 'x')), HasSubstr("unknown flag --xxx"));
  EXPECT_EQ(refused("-lr 1"),
            "unexpected argument '-lr': flags begin with --, switches take no value; did you mean "
            "--lr?");
  EXPECT_THAT(refused("-lr=1"), EndsWith("; did you mean --lr?"));
  EXPECT_THAT(refused("-x 1"), EndsWith("unexpected argument '-x': flags begin with --, switches "
                                        "take no value"));
  EXPECT_THAT(refused("corpus"), HasSubstr("unexpected argument 'corpus'"));
  EXPECT_THAT(refused("--bf16 true"), HasSubstr("unexpected argument 'true'"));
  for (const char* args : {"--", "--bf16 --", "-- --bf16", "--data-path a -- b"})
    EXPECT_EQ(refused(args), "unexpected argument '--': every word belongs to a flag; leave it out")
        << args;
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
  EXPECT_THAT(refused("--tokenizer-type BertWordPieceCase"),
              HasSubstr("--tokenizer-type BertWordPieceCase: expected one of GPT2BPETokenizer"));
}

// A flag, the other flags that leave it without effect, and the reason that the message must name.
struct Useless {
  const char* args;
  const char* flag;
  const char* reason;
};

TEST(Refusals, OfFlagsWithoutEffect) {
  const Useless cases[] = {
      {"--train-iters 1 --train-samples 2", "--train-iters 1", "--train-samples 2"},
      {"--train-iters 9 --rampup-batch-size 4 4 8", "--rampup-batch-size 4 4 8", "--train-samples"},
      {"--use-checkpoint-args", "--use-checkpoint-args", "--load"},
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
      {"--tokenizer-type HFTokenizer --tokenizer-model m --merge-file m", "--merge-file m",
       "HFTokenizer"},
      {"--tokenizer-type HFTokenizer --tokenizer-model m --tiktoken-pattern v1",
       "--tiktoken-pattern v1", "HFTokenizer"},
      {"--tiktoken-num-special-tokens 9", "--tiktoken-num-special-tokens 9", "ByteLevelTokenizer"},
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

TEST(Refusals, OfScalesWithoutFp16AndTracesWithoutAProfile) {
  EXPECT_EQ(refused("--fp16 --bf16"), "--fp16 has no effect beside --bf16; keep one of them");
  EXPECT_EQ(refused("--loss-scale 8"), "--loss-scale 8 has no effect without --fp16");
  EXPECT_EQ(refused("--trace t.json"), "--trace t.json has no effect without --profile-step");
  EXPECT_EQ(refused("--trace t.json --profile-step 0"),
            "--trace t.json has no effect without --profile-step");
  EXPECT_EQ(refused("--fp16 --hysteresis 2 --loss-scale 8"),
            "--hysteresis 2 has no effect with a static --loss-scale");
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

TEST(Refusals, OfDevicesAndBackends) {
  EXPECT_EQ(refused("--device cuda --distributed-backend mpi"), "");
  EXPECT_EQ(refused("--device gpu"), "--device gpu: expected one of cpu, cuda");
  EXPECT_EQ(refused("--distributed-backend ccl"),
            "--distributed-backend ccl: expected one of mpi, nccl, gloo");
}

TEST(ForeignFlags, AreIgnoredOrRefusedAsListed) {
  for (const Foreign& foreign : foreign_flags()) {
    for (const std::string_view flag : split(foreign.names, '|')) {
      const std::string name = "--" + std::string(flag);
      const std::string answer = refused(foreign.takes_value ? name + " 12345" : name);
      if (foreign.ignored()) {
        EXPECT_EQ(answer, "");
      } else {
        EXPECT_THAT(answer, AllOf(HasSubstr(name), HasSubstr(std::string(foreign.reason))));
      }
    }
  }
  EXPECT_EQ(refused("--data-impl lazy"),
            "--data-impl lazy: only Megatron's .bin/.idx files are read; accepted: mmap|infer");
  EXPECT_EQ(refused("--recompute-granularity full"),
            "--recompute-granularity full: use --activation-checkpointing, which keeps only the "
            "input of each layer");
  EXPECT_THAT(refused("--partition-activations"), HasSubstr("keeps the input of each layer whole"));
  EXPECT_THAT(refused("--data-impl mmap|infer"), HasSubstr("--data-impl mmap|infer: only"));
}

TEST(ForeignFlags, HideNoFlagOfOurs) {
  const GptCommandLine line;
  for (const Foreign& foreign : foreign_flags()) {
    for (const std::string_view flag : split(foreign.names, '|'))
      EXPECT_EQ(line.flags.find(flag), nullptr) << flag;
  }
}

// The command lines and JSON files of the checkpoints that Megatron-DeepSpeed wrote.
struct MegatronRun {
  const char* name;
  int tp, pp, zero_stage;
  bool bf16;
};

// Spellings of DeepSpeed, torchrun, Hugging Face and people in haste.
TEST(Synonyms, AreToldTheFlagThatIsMeant) {
  const std::pair<const char*, const char*> cases[] = {
      {"tp", "use --tensor-model-parallel-size N"},
      {"pp", "use --pipeline-model-parallel-size N"},
      {"dp", "start tensor x pipeline x data"},
      {"tensor-parallel-size", "use --tensor-model-parallel-size N"},
      {"data-parallel-size", "start tensor x pipeline x data"},
      {"context-parallel-size", "not in this version; --sequence-parallel cuts"},
      {"learning-rate", "use --lr"},
      {"learning_rate", "use --lr"},
      {"max-steps", "use --train-iters N"},
      {"num_train_epochs", "use --train-iters N or --train-samples N"},
      {"resume", "use --load FOLDER"},
      {"resume_from_checkpoint", "use --load FOLDER"},
      {"output-dir", "use --save FOLDER"},
      {"gradient-accumulation-steps", "use --global-batch-size N"},
      {"per_device_train_batch_size", "use --micro-batch-size N"},
      {"nproc_per_node", "is for the launcher: mpirun -n N"},
      {"mixed-precision", "use --bf16 or --fp16"},
  };
  for (const auto& [name, advice] : cases) {
    const std::string flag = std::string("--") + name;
    for (const std::string& given : {flag + " 2", flag + "=2"})
      EXPECT_THAT(refused(given),
                  AllOf(testing::StartsWith("unknown flag " + flag + "; "), HasSubstr(advice)));
  }
  EXPECT_EQ(refused("--xy 2"), "unknown flag --xy");  // not --lr
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
    line.read(args);
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
