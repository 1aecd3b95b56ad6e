#include "framework/config/deepspeed_json.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/config/support.h"

namespace anymesh {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class DeepspeedJsonTest : public testing::Test {
 protected:
  DeepspeedJsonTest() : path(testing::TempDir() + "ds_" + std::to_string(getpid()) + ".json") {
    add_flags(flags, config);
  }
  ~DeepspeedJsonTest() override { std::filesystem::remove(path); }

  std::vector<std::string> read(const std::string& json) {
    std::ofstream(path) << json;
    return read_deepspeed_json(path, flags, config);
  }

  // Returns the refusal of `json` beside the flags `args`, read into a fresh table.
  std::string refused(const std::string& json, const std::string& args = "") {
    std::ofstream(path) << json;
    Config fresh;
    FlagTable table("pretrain_gpt", "");
    add_flags(table, fresh);
    std::vector<std::string> all = words(args);
    all.insert(all.end(), {"--deepspeed_config", path});
    return refusal([&] { parse(table, fresh, all); });
  }

  std::string path;
  Config config;
  FlagTable flags{"pretrain_gpt", ""};
};

TEST_F(DeepspeedJsonTest, EveryKeyReachesItsField) {
  const std::vector<std::string> ignored = read(R"({
      "train_batch_size": 16, "train_micro_batch_size_per_gpu": 2,
      "gradient_accumulation_steps": 4, "gradient_clipping": 0.5, "prescale_gradients": false,
      "zero_optimization": {"stage": 1, "overlap_comm": true, "reduce_bucket_size": 5e8,
                            "offload_optimizer": {"device": "none", "pin_memory": true}},
      "bf16": {"enabled": true}, "fp16": {"enabled": false, "loss_scale": 0},
      "optimizer": {"type": "AdamW", "params": {"lr": 0.001, "betas": [0.8, 0.95], "eps": 1e-6,
                    "weight_decay": 0.1, "adam_w_mode": true}},
      "checkpoint": {"load_universal": true, "tag_validation": "FAIL"},
      "data_types": {"grad_accum_dtype": "fp32"},
      "steps_per_print": 1000, "wall_clock_breakdown": false, "flops_profiler": {"enabled": false}
  })");
  EXPECT_EQ(config.batch.global_batch_size, 16);
  EXPECT_EQ(config.batch.micro_batch_size, 2);
  EXPECT_EQ(config.batch.gradient_accumulation_steps, 4);
  EXPECT_EQ(config.engine.zero.clip_grad, 0.5);
  EXPECT_EQ(config.engine.zero.stage, 1);
  EXPECT_TRUE(config.precision.bf16);
  EXPECT_EQ(config.engine.schedule.max_lr, 0.001);
  EXPECT_EQ(config.engine.zero.adam.beta1, 0.8);
  EXPECT_EQ(config.engine.zero.adam.beta2, 0.95);
  EXPECT_EQ(config.engine.zero.adam.eps, 1e-6);
  EXPECT_EQ(config.engine.zero.weight_decay, 0.1);
  EXPECT_TRUE(config.checkpoint.universal_checkpoint);
  EXPECT_EQ(config.engine.tag_validation, TagValidation::Fail);
  EXPECT_THAT(ignored,
              testing::UnorderedElementsAre(
                  "steps_per_print", "wall_clock_breakdown", "flops_profiler", "fp16.loss_scale",
                  "zero_optimization.overlap_comm", "zero_optimization.reduce_bucket_size",
                  "zero_optimization.offload_optimizer.pin_memory"));
}

TEST_F(DeepspeedJsonTest, ContradictionsNameBothSides) {
  EXPECT_EQ(refused(R"({"gradient_clipping": 0.5})", "--clip-grad 1.0"),
            "--clip-grad 1.0 and gradient_clipping 0.5 of " + path +
                " contradict each other; keep one of them");
  struct Case {
    const char *json, *args, *key;
  };
  const Case cases[] = {
      {R"({"train_batch_size": 8})", "--global-batch-size 4", "train_batch_size 8"},
      {R"({"train_micro_batch_size_per_gpu": 2})", "--micro-batch-size 1",
       "train_micro_batch_size_per_gpu 2"},
      {R"({"zero_optimization": {"stage": 0}})", "--zero-stage 1", "zero_optimization.stage 0"},
      {R"({"bf16": {"enabled": false}})", "--bf16", "bf16.enabled false"},
      {R"({"optimizer": {"params": {"lr": 0.1}}})", "--lr 0.2", "optimizer.params.lr 0.1"},
      {R"({"optimizer": {"params": {"betas": [0.9, 0.95]}}})", "--adam-beta2 0.999",
       "optimizer.params.betas[1] 0.95"},
      {R"({"optimizer": {"params": {"eps": 1e-6}}})", "--adam-eps 1e-8",
       "optimizer.params.eps 1e-06"},
      {R"({"optimizer": {"params": {"weight_decay": 0}}})", "--weight-decay 0.1",
       "optimizer.params.weight_decay 0"},
      {R"({"checkpoint": {"load_universal": false}})", "--load x --universal-checkpoint",
       "checkpoint.load_universal false"},
  };
  for (const Case& c : cases) {
    EXPECT_THAT(refused(c.json, c.args),
                AllOf(HasSubstr(c.key), HasSubstr("contradict each other")))
        << c.json;
  }
  EXPECT_EQ(
      refused(R"({"gradient_clipping": 1, "bf16": {"enabled": true}})", "--clip-grad 1.0 --bf16"),
      "");
}

// A template has both sections, switched on or off.
TEST_F(DeepspeedJsonTest, HalfPrecisionsBesideEachOther) {
  for (const char* json : {R"({"bf16": {"enabled": true}, "fp16": {"enabled": false}})",
                           R"({"bf16": {"enabled": false}, "fp16": {"enabled": true}})",
                           R"({"bf16": {"enabled": false}, "fp16": {"enabled": false}})"})
    EXPECT_EQ(refused(json), "") << json;
  EXPECT_EQ(refused(R"({"fp16": {"enabled": false}})", "--bf16"), "");
  EXPECT_THAT(refused(R"({"bf16": {"enabled": true}, "fp16": {"enabled": true}})"),
              HasSubstr("has no effect beside bf16.enabled true"));
}

TEST_F(DeepspeedJsonTest, Fp16) {
  read(R"({"fp16": {"enabled": true, "loss_scale": 0, "initial_scale_power": 12,
           "loss_scale_window": 50, "hysteresis": 2, "min_loss_scale": 1}})");
  EXPECT_TRUE(config.precision.fp16);
  EXPECT_EQ(config.precision.initial_loss_scale, 4096);
  EXPECT_EQ(config.precision.loss_scale_window, 50);
  EXPECT_EQ(refused(R"({"fp16": {"enabled": true, "initial_scale_power": 12}})",
                    "--initial-loss-scale 4096"),
            "");
  EXPECT_THAT(refused(R"({"fp16": {"enabled": true, "initial_scale_power": 63}})"),
              HasSubstr("between 0 and 62"));
  EXPECT_THAT(refused(R"({"fp16": {"enabled": false, "loss_scale": 8}})", "--fp16"),
              HasSubstr("contradict"));
}

TEST_F(DeepspeedJsonTest, Fp16StartsWhereDeepSpeedDoes) {
  read(R"({"fp16": {"enabled": true}})");
  EXPECT_EQ(config.precision.initial_loss_scale, 65536);
  EXPECT_EQ(refused(R"({"fp16": {"enabled": true}})", "--fp16 --loss-scale 128"), "");
}

// Flags give the values that a section lacks.
TEST_F(DeepspeedJsonTest, SectionsThatFlagsSwitchOn) {
  config.precision.fp16 = true;
  config.engine.zero.offload.optimizer = "nvme";
  EXPECT_THAT(read(R"({"fp16": {"loss_scale": 128, "loss_scale_window": 500},
                       "zero_optimization": {"offload_optimizer": {"nvme_path": "/d"},
                                             "offload_param": {"nvme_path": "/e"}}})"),
              testing::ElementsAre("zero_optimization.offload_param.nvme_path"));
  EXPECT_EQ(config.precision.loss_scale, 128);
  EXPECT_EQ(config.precision.loss_scale_window, 500);
  EXPECT_EQ(config.engine.zero.offload.nvme_path, "/d");
}

TEST_F(DeepspeedJsonTest, Offload) {
  const std::vector<std::string> ignored = read(R"({"zero_optimization": {"stage": 3,
      "offload_optimizer": {"device": "nvme", "nvme_path": "/disk", "pin_memory": true,
                            "buffer_count": 4, "pipeline_read": true, "fast_init": false},
      "offload_param": {"device": "nvme", "nvme_path": "/disk", "buffer_size": 1e8}}})");
  EXPECT_EQ(config.engine.zero.offload.optimizer, "nvme");
  EXPECT_EQ(config.engine.zero.offload.param, "nvme");
  EXPECT_EQ(config.engine.zero.offload.nvme_path, "/disk");
  EXPECT_EQ(ignored.size(), 5u);
  EXPECT_THAT(ignored, testing::Contains("zero_optimization.offload_param.buffer_size"));

  const std::string offload = R"({"zero_optimization": {"offload_optimizer": )";
  EXPECT_EQ(refused(offload + R"({"device": "none", "nvme_path": "/disk"}}})"), "");
  EXPECT_EQ(refused(offload + R"({"device": "cpu"}}})", "--offload-optimizer cpu"), "");
  EXPECT_THAT(refused(offload + R"({"device": "cpu"}}})", "--offload-optimizer nvme"),
              HasSubstr("contradict"));
  EXPECT_THAT(refused(offload + R"({"device": "nvme", "nvme_path": "/a"},
                                   "offload_param": {"device": "nvme", "nvme_path": "/b"}}})"),
              AllOf(HasSubstr("offload_optimizer.nvme_path \"/a\""),
                    HasSubstr("offload_param.nvme_path \"/b\""), HasSubstr("contradict")));
  EXPECT_THAT(refused(offload + R"({"device": "gpu"}}})"),
              HasSubstr("zero_optimization.offload_optimizer.device \"gpu\" of " + path +
                        ": expected one of none, cpu, nvme"));
  EXPECT_THAT(refused(offload + R"({"device": 1}}})"), HasSubstr("device 1 of " + path));
  EXPECT_THAT(refused(offload + R"({"devices": "cpu"}}})"),
              HasSubstr("zero_optimization.offload_optimizer.devices is not a key"));
}

TEST_F(DeepspeedJsonTest, KeysWithoutEffectAreRefusedAsTheirFlagsAre) {
  EXPECT_EQ(refused(R"({"checkpoint": {"load_universal": true}})"),
            "checkpoint.load_universal true of " + path + " has no effect without --load");
  EXPECT_EQ(refused(R"({"fp16": {"enabled": false}})", "--bf16 --loss-scale 8"),
            "--loss-scale 8 has no effect without --fp16");
}

TEST_F(DeepspeedJsonTest, RefusesWhatThisVersionLacks) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"fp16": {"enabled": true, "consecutive_hysteresis": true}})",
       "fp16.consecutive_hysteresis true"},
      {R"({"optimizer": {"type": "Lamb"}})", "optimizer.type \"Lamb\""},
      {R"({"optimizer": {"params": {"adam_w_mode": false}}})",
       "optimizer.params.adam_w_mode false"},
      {R"({"data_types": {"grad_accum_dtype": "fp8"}})", "data_types.grad_accum_dtype \"fp8\""},
      {R"({"prescale_gradients": true})", "prescale_gradients true"},
      {R"({"scheduler": {"type": "WarmupLR"}})", "--lr-decay-style"},
  };
  for (const auto& [json, key] : cases) EXPECT_THAT(refused(json), HasSubstr(key)) << json;
}

TEST_F(DeepspeedJsonTest, NotesThatSumsAreInFp32) {
  for (const std::string dtype : {"bf16", "fp16"}) {
    std::ofstream(path) << R"({"data_types": {"grad_accum_dtype": ")" << dtype << "\"}}";
    std::vector<std::string> notes;
    read_deepspeed_json(path, flags, config, &notes);
    EXPECT_THAT(notes, testing::ElementsAre("data_types.grad_accum_dtype \"" + dtype + "\" of " +
                                            path + ": gradients are summed in fp32 here"));
  }
  EXPECT_EQ(refused(R"({"data_types": {"grad_accum_dtype": "float32"}})"), "");
}

TEST_F(DeepspeedJsonTest, FixedKeysTakeWhatHappensAnyway) {
  EXPECT_EQ(refused(R"({"communication_data_type": null, "optimizer": {"type": "FusedAdam"}})"),
            "");
  EXPECT_EQ(refused(R"({"optimizer": {"type": "adamw"}})"), "");
  EXPECT_EQ(refused(R"({"prescale_gradients": true})"),
            "prescale_gradients true of " + path +
                ": gradients are reduced first and scaled afterwards; accepted: false");
  EXPECT_THAT(refused(R"({"communication_data_type": [null]})"),
              HasSubstr("communication_data_type array of " + path));
  const std::string deep = std::string(100000, '[') + std::string(100000, ']');
  EXPECT_THAT(read("{\"aio\": " + deep + "}"), testing::ElementsAre("aio"));
  EXPECT_THAT(refused("{\"fp16\": {\"enabled\": " + deep + "}}"), HasSubstr("fp16.enabled array"));
  EXPECT_THAT(refused("{\"zero_optimization\": {\"offload_param\": {\"device\": " + deep + "}}}"),
              HasSubstr("offload_param.device array"));
}

TEST_F(DeepspeedJsonTest, UnknownKeysAreRefusedWithTheirPath) {
  EXPECT_EQ(refused(R"({"train_batchsize": 8})"),
            path + ": train_batchsize is not a key that this trainer knows");
  EXPECT_EQ(refused(R"({"optimizer": {"params": {"momentum": 0.9}}})"),
            path + ": optimizer.params.momentum is not a key that this trainer knows");
}

TEST_F(DeepspeedJsonTest, WrongTypesAreRefused) {
  EXPECT_THAT(refused(R"({"train_batch_size": "8"})"),
              HasSubstr("train_batch_size \"8\" of " + path + ": expected an integer"));
  EXPECT_THAT(refused(R"({"train_batch_size": 8.5})"), HasSubstr("8.5 of "));
  EXPECT_THAT(refused(R"({"train_batch_size": [8]})"), HasSubstr("expected one value"));
  EXPECT_THAT(refused(R"({"gradient_clipping": "auto"})"), HasSubstr("expected a number"));
  EXPECT_THAT(refused(R"({"bf16": {"enabled": 1}})"), HasSubstr("expected true or false"));
  EXPECT_THAT(refused(R"({"bf16": true})"),
              HasSubstr("bf16 true of " + path + ": expected an object"));
  EXPECT_THAT(refused(R"({"optimizer": {"params": {"betas": [0.9]}}})"),
              HasSubstr("optimizer.params.betas array of " + path + ": expected two numbers"));
  for (const char* steps : {"0", "-1", "1.5", "\"2\"", "null", "4294967296"}) {
    EXPECT_THAT(refused(R"({"gradient_accumulation_steps": )" + std::string(steps) + "}"),
                HasSubstr("gradient_accumulation_steps " + std::string(steps) + " of " + path +
                          ": expected a positive integer"));
  }
}

TEST_F(DeepspeedJsonTest, BadFilesAreRefusedWithTheByte) {
  EXPECT_THAT(refused(R"({"train_batch_size": 8,})"), HasSubstr(path + ": byte 24: "));
  EXPECT_THAT(refused(""), HasSubstr(path + ": byte 1: "));
  EXPECT_THAT(refused("[]"), HasSubstr(path + ": expected a JSON object"));
  EXPECT_THAT(refused(std::string(100000, '[')), HasSubstr(path + ": byte 100001: "));
  EXPECT_THAT(refused(R"({"bf16": {"enabled": true, "enabled": false}})"),
              HasSubstr("the key \"enabled\" is given twice"));
  EXPECT_THAT(refused(R"({"gradient_clipping": 1e999})"), HasSubstr(path + ": "));
  EXPECT_THAT(refused("{\"a\x1b[2J\\u0000\\n\": 1}"), HasSubstr(path + ": byte "));
  EXPECT_THAT(refused("{\"a\\u001b\\u0000\\n\": 1}"),
              HasSubstr("a\\x1b\\x00\\n is not a key that this trainer knows"));
  EXPECT_THAT(refused("{\"a\xff\": 1}"), HasSubstr(path + ": byte "));
  EXPECT_THAT(refused(std::string(300'000, ' ') + "{}"), HasSubstr("expected at most 262144"));
  std::filesystem::remove(path);
  const std::string folder = std::filesystem::path(path).parent_path();
  EXPECT_THAT(refusal([&] { read_deepspeed_json(folder, flags, config); }),
              HasSubstr("--deepspeed_config " + folder + ": is a folder, expected a file"));
  EXPECT_THAT(refusal([&] { read_deepspeed_json(path, flags, config); }),
              HasSubstr("--deepspeed_config " + path + ": cannot open: No such file"));
}

}  // namespace
}  // namespace anymesh
