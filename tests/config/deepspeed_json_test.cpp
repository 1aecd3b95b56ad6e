#include "framework/config/deepspeed_json.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/config/support.h"

namespace anymesh {
namespace {

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
    GptCommandLine line;
    return refusal([&] { line.read(args + " --deepspeed_config " + path); });
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
  EXPECT_EQ(config.engine.zero.optimizer.adam.beta1, 0.8);
  EXPECT_EQ(config.engine.zero.optimizer.adam.beta2, 0.95);
  EXPECT_EQ(config.engine.zero.optimizer.adam.eps, 1e-6);
  EXPECT_EQ(config.engine.zero.weight_decay, 0.1);
  EXPECT_TRUE(config.checkpoint.universal_checkpoint);
  EXPECT_EQ(config.engine.tag_validation, TagValidation::Fail);
  EXPECT_THAT(ignored,
              testing::UnorderedElementsAre(
                  "steps_per_print", "wall_clock_breakdown", "flops_profiler", "fp16.loss_scale",
                  "zero_optimization.overlap_comm", "zero_optimization.reduce_bucket_size",
                  "zero_optimization.offload_optimizer.pin_memory"));
}

TEST_F(DeepspeedJsonTest, OtherOptimizers) {
  read(R"({"optimizer": {"type": "SGD", "params": {"lr": 0.1}}})");
  EXPECT_EQ(config.engine.zero.optimizer.name, "sgd");
  EXPECT_EQ(config.engine.zero.optimizer.sgd.momentum, 0);  // torch's default, not Megatron's
}

TEST_F(DeepspeedJsonTest, Lion) {
  read(R"({"optimizer": {"type": "Lion", "params": {"betas": [0.8, 0.98]}}})");
  EXPECT_EQ(config.engine.zero.optimizer.lion.beta1, 0.8);
  EXPECT_EQ(config.engine.zero.optimizer.lion.beta2, 0.98);
}

TEST_F(DeepspeedJsonTest, Muon) {
  read(R"({"optimizer": {"type": "Muon", "params": {"muon_lr": 0.04, "adam_lr": 0.002,
           "momentum": 0.9, "betas": [0.9, 0.95]}}})");
  EXPECT_EQ(config.engine.zero.optimizer.name, "muon");
  EXPECT_EQ(config.engine.schedule.max_lr, 0.002);
  EXPECT_EQ(config.engine.zero.optimizer.muon.lr_scale, 20);
  EXPECT_EQ(config.engine.zero.optimizer.muon.momentum, 0.9);
  EXPECT_EQ(config.engine.zero.optimizer.adam.beta2, 0.95);
}

TEST_F(DeepspeedJsonTest, RefusalsAreThoseOfTheList) {
  expect_refusals("deepspeed_refusals.txt", [&](const std::string& line) {
    const size_t end = line.rfind('}') + 1;
    std::string message = refused(line.substr(0, end), line.substr(end));
    for (size_t at; (at = message.find(path)) != message.npos;)
      message.replace(at, path.size(), "ds.json");
    return message;
  });
}

TEST_F(DeepspeedJsonTest, Fp16) {
  read(R"({"fp16": {"enabled": true, "loss_scale": 0, "initial_scale_power": 12,
           "loss_scale_window": 50, "hysteresis": 2, "min_loss_scale": 1}})");
  EXPECT_TRUE(config.precision.fp16);
  EXPECT_EQ(config.precision.initial_loss_scale, 4096);
  EXPECT_EQ(config.precision.loss_scale_window, 50);
}

TEST_F(DeepspeedJsonTest, Fp16StartsWhereDeepSpeedDoes) {
  read(R"({"fp16": {"enabled": true}})");
  EXPECT_EQ(config.precision.initial_loss_scale, 65536);
}

// Flags give the values that a section lacks.
TEST_F(DeepspeedJsonTest, SectionsThatFlagsSwitchOn) {
  config.precision.fp16 = true;
  config.engine.zero.offload.optimizer = "nvme";
  EXPECT_THAT(read(R"({"fp16": {"loss_scale": 128, "loss_scale_window": 500},
                       "zero_optimization": {"offload_optimizer": {"nvme_path": "/d"},
                                             "offload_param": {"nvme_path": "/e"}}})"),
              ElementsAre("zero_optimization.offload_param.nvme_path"));
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
  EXPECT_THAT(ignored, Contains("zero_optimization.offload_param.buffer_size"));
}

TEST_F(DeepspeedJsonTest, NotesThatSumsAreInFp32) {
  for (const std::string dtype : {"bf16", "fp16"}) {
    std::ofstream(path) << R"({"data_types": {"grad_accum_dtype": ")" << dtype << "\"}}";
    std::vector<std::string> notes;
    read_deepspeed_json(path, flags, config, &notes);
    EXPECT_THAT(notes, ElementsAre("data_types.grad_accum_dtype \"" + dtype + "\" of " + path +
                                   ": gradients are summed in fp32 here"));
  }
}

TEST_F(DeepspeedJsonTest, ValuesMayBeNestedWithoutLimit) {
  const std::string deep = std::string(100000, '[') + std::string(100000, ']');
  EXPECT_THAT(read("{\"aio\": " + deep + "}"), ElementsAre("aio"));
  EXPECT_THAT(refused("{\"fp16\": {\"enabled\": " + deep + "}}"), HasSubstr("fp16.enabled array"));
  EXPECT_THAT(refused("{\"zero_optimization\": {\"offload_param\": {\"device\": " + deep + "}}}"),
              HasSubstr("offload_param.device array"));
}

TEST_F(DeepspeedJsonTest, BadFilesAreRefusedWithTheByte) {
  EXPECT_THAT(refused(""), HasSubstr(path + ": byte 1: "));
  EXPECT_THAT(refused("[]"), HasSubstr(path + ": expected a JSON object"));
  EXPECT_THAT(refused(std::string(100000, '[')), HasSubstr(path + ": byte 100001: "));
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
