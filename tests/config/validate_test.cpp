#include "models/gpt/gpt_config.h"
#include "tests/config/support.h"

namespace anymesh {
namespace {

using testing::HasSubstr;

class ValidateTest : public testing::Test {
 protected:
  ValidateTest() {
    config.batch.train_iters = 20;
    config.engine.schedule.max_lr = 1e-3;
    config.data.data_path = {"corpus"};
    config.data.tokenizer_type = "ByteLevelTokenizer";
    gpt = {.num_layers = 4,
           .hidden_size = 64,
           .num_attention_heads = 4,
           .seq_length = 32,
           .max_position_embeddings = 32};
  }

  std::string refused(int world_size = 1) const {
    return refusal([&] { validate(config, gpt, world_size); });
  }

  // Returns the refusal when `field` is `value`, which it is only for the call.
  template <class T>
  std::string refused_with(T& field, std::type_identity_t<T> value, int world_size = 1) {
    std::swap(field, value);
    const std::string message = refused(world_size);
    std::swap(field, value);
    return message;
  }

  Config config;
  GptConfig gpt;
};

TEST_F(ValidateTest, TheBaseRuns) {
  EXPECT_EQ(refused(), "");
  EXPECT_EQ(refused(8), "");
}

TEST_F(ValidateTest, Device) {
  config.device = {.device = "cpu", .distributed_backend = "nccl"};
  EXPECT_EQ(refused(),
            "--distributed-backend nccl moves tensors between GPUs, got --device cpu; use "
            "--distributed-backend mpi, or --device cuda");
  config.device = {.device = "cuda", .distributed_backend = "mpi"};
  EXPECT_EQ(refused(), "");
}

TEST_F(ValidateTest, Mesh) {
  EXPECT_EQ(refused_with(config.parallel.tp, 0),
            "--tensor-model-parallel-size (0) must be at least 1");
  EXPECT_EQ(refused_with(config.parallel.pp, -1),
            "--pipeline-model-parallel-size (-1) must be at least 1");
  config.parallel.tp = 2;
  EXPECT_EQ(refused_with(config.parallel.pp, 2, 6),
            "world size 6 is not divisible by --tensor-model-parallel-size (2) x "
            "--pipeline-model-parallel-size (2) = 4; try mpirun -n 4 or -n 8");
  EXPECT_THAT(refused_with(config.parallel.pp, 2, 3), testing::EndsWith("try mpirun -n 4"));
  EXPECT_THAT(refused_with(config.parallel.pp, 2000000000, 2), HasSubstr("= 4000000000"));
  EXPECT_EQ(refused_with(config.parallel.tp, 3, 3),
            "--num-attention-heads (4) must be divisible by --tensor-model-parallel-size (3); "
            "sizes that work: 1, 2, 4");
  config.parallel.sequence_parallel = true;
  config.parallel.tp = 4;
  EXPECT_EQ(refused_with(gpt.seq_length, 30, 4),
            "--sequence-parallel: --seq-length (30) must be divisible by "
            "--tensor-model-parallel-size (4); sizes that work: 1, 2");
  config.parallel = {.tp = 2, .pp = 1};
  EXPECT_EQ(refused_with(gpt.ffn_hidden_size, 129, 2),
            "--ffn-hidden-size (129) must be divisible by --tensor-model-parallel-size (2); "
            "sizes that work: 1");
  EXPECT_EQ(refused_with(config.parallel.pp, 5, 10),
            "--num-layers (4) must be at least --pipeline-model-parallel-size (5)");
}

TEST_F(ValidateTest, ZeroStage) {
  EXPECT_EQ(refused_with(config.engine.zero.stage, 1, 2), "");
  EXPECT_EQ(refused_with(config.engine.zero.stage, 3, 2), "");
  EXPECT_EQ(refused_with(config.engine.zero.stage, 4), "--zero-stage (4) must be 0, 1, 2 or 3");
  EXPECT_EQ(refused_with(config.engine.zero.stage, -1), "--zero-stage (-1) must be 0, 1, 2 or 3");
}

TEST_F(ValidateTest, Offload) {
  for (const char* device : {"cpu", "nvme"}) {
    config.engine.zero.offload = {.optimizer = device, .nvme_path = "/disk"};
    config.engine.zero.stage = 1;
    EXPECT_EQ(refused(), "");
    config.engine.zero.offload.param = device;
    config.engine.zero.stage = 3;
    EXPECT_EQ(refused(), "");
  }
  EXPECT_EQ(refused_with(config.engine.zero.stage, 2),
            "--offload-param nvme needs partitioned parameters: --zero-stage (2) must be at least "
            "3; use --zero-stage 3 --offload-param nvme --nvme-path /local_nvme");
  config.engine.zero.offload.optimizer = "cpu";
  EXPECT_EQ(refused_with(config.engine.zero.stage, 0),
            "--offload-optimizer cpu needs a partitioned optimizer: --zero-stage (0) must be at "
            "least 1; use --zero-stage 1 --offload-optimizer cpu");
  EXPECT_EQ(refused_with(config.engine.zero.offload.nvme_path, std::string()),
            "--offload-param nvme needs a folder for its file, got no --nvme-path; use "
            "--zero-stage 3 --offload-param nvme --nvme-path /local_nvme");
}

TEST_F(ValidateTest, Batch) {
  EXPECT_EQ(refused_with(config.batch.micro_batch_size, 0),
            "--micro-batch-size (0) must be at least 1");
  EXPECT_EQ(refused_with(config.batch.global_batch_size, -8),
            "--global-batch-size (-8) must not be negative");
  config.batch.micro_batch_size = 3;
  EXPECT_EQ(refused_with(config.batch.global_batch_size, 8, 2),
            "--global-batch-size (8) must be divisible by --micro-batch-size (3) x data-parallel "
            "size (2) = 6; use --global-batch-size 6 or 12");
  EXPECT_THAT(refused_with(config.batch.global_batch_size, 4, 2),
              testing::EndsWith("use --global-batch-size 6"));
  config.batch.gradient_accumulation_steps = 4;
  EXPECT_EQ(refused_with(config.batch.global_batch_size, 24, 2), "");
  EXPECT_THAT(refused_with(config.batch.global_batch_size, 12, 2),
              HasSubstr("must equal gradient_accumulation_steps (4) x --micro-batch-size (3) x "
                        "data-parallel size (2) = 24"));
  EXPECT_THAT(refused_with(config.batch.micro_batch_size, 2000000000, 2),
              HasSubstr("is too large"));
}

TEST_F(ValidateTest, BatchRamp) {
  config.batch = {.global_batch_size = 24, .train_samples = 100};
  config.batch.rampup_batch_size = {"8", "4", "50"};
  EXPECT_EQ(refused(), "");
  EXPECT_EQ(refused(4), "");
  EXPECT_EQ(plan_batches(config, 4).train_iters, 6);  // 8 8 12 16 20 24
  EXPECT_EQ(refused(8),
            "--rampup-batch-size 8 4 50: 4 must be divisible by --micro-batch-size (1) x "
            "data-parallel size (8) = 8");
  EXPECT_EQ(refused_with(config.batch.rampup_batch_size, {"8", "4", "101"}),
            "--rampup-batch-size 8 4 101: expected at most the samples of the run, "
            "--train-samples (100)");
}

TEST_F(ValidateTest, Documents) {
  gpt.reset_attention_mask = true;
  EXPECT_EQ(refused(), "");
  EXPECT_EQ(refused_with(config.data.mock_data, true),
            "--reset-attention-mask has no effect with --mock-data, whose text has no documents");
  gpt.reset_position_ids = true;
  EXPECT_THAT(refused_with(gpt.position_embedding_type, std::string("alibi")),
              HasSubstr("--reset-position-ids has no effect on a model without position ids"));
}

TEST_F(ValidateTest, Length) {
  const std::string both =
      "give exactly one of --train-iters (0) and --train-samples (0); --help lists all flags";
  EXPECT_EQ(refused_with(config.batch.train_iters, int64_t{0}), both);
  EXPECT_THAT(refused_with(config.batch.train_samples, int64_t{9}), HasSubstr("exactly one of"));
  EXPECT_THAT(refused_with(config.batch.train_iters, int64_t{-1}), HasSubstr("--train-iters (-1)"));
  EXPECT_THAT(refused_with(config.batch.train_samples, int64_t{-1}),
              HasSubstr("--train-samples (-1)"));
  EXPECT_THAT(refused_with(config.batch.train_iters, INT64_MAX, 2), HasSubstr("is too large"));
  config.batch.train_iters = 0;
  config.batch.train_samples = 7;
  EXPECT_EQ(refused_with(config.batch.global_batch_size, 8),
            "--train-samples (7) is less than one step of --global-batch-size (8)");
}

TEST_F(ValidateTest, Optimizer) {
  EXPECT_THAT(refused_with(config.engine.schedule.max_lr, 0.0), HasSubstr("--lr (0) is required"));
  EXPECT_EQ(refused_with(config.engine.schedule.min_lr, 0.1),
            "--min-lr (0.1) must be between 0 and --lr (0.001)");
  EXPECT_THAT(refused_with(config.engine.schedule.min_lr, -0.1), HasSubstr("--min-lr (-0.1)"));
  EXPECT_THAT(refused_with(config.engine.zero.weight_decay, -1.0),
              HasSubstr("--weight-decay (-1)"));
  EXPECT_EQ(refused_with(config.engine.zero.adam.beta1, 1.0), "--adam-beta1 (1) must be in [0, 1)");
  EXPECT_EQ(refused_with(config.engine.zero.adam.beta2, -0.1),
            "--adam-beta2 (-0.1) must be in [0, 1)");
  EXPECT_THAT(refused_with(config.engine.zero.adam.eps, 0.0), HasSubstr("--adam-eps (0)"));
  EXPECT_THAT(refused_with(config.engine.zero.clip_grad, -1.0), HasSubstr("--clip-grad (-1)"));
  EXPECT_EQ(refused_with(config.engine.zero.clip_grad, 0.0), "");
  EXPECT_EQ(refused_with(config.schedule.lr_warmup_fraction, std::optional(1.0)),
            "--lr-warmup-fraction (1) must be in [0, 1)");
  EXPECT_EQ(refused_with(config.schedule.lr_warmup_iters, int64_t{19}), "");
  EXPECT_THAT(refused_with(config.schedule.lr_warmup_iters, int64_t{20}, 2),
              HasSubstr("--lr-warmup-iters (20)"));
  EXPECT_THAT(refused_with(config.schedule.lr_warmup_iters, int64_t{-1}),
              HasSubstr("(-1) is negative"));
  EXPECT_THAT(refused_with(config.schedule.lr_decay_iters, INT64_MAX, 2), HasSubstr("too large"));
  EXPECT_THAT(refused_with(config.schedule.lr_decay_samples, int64_t{-1}),
              HasSubstr("--lr-decay-samples"));
  EXPECT_THAT(refused_with(config.schedule.lr_warmup_samples, int64_t{-1}),
              HasSubstr("--lr-warmup-samples"));
  config.engine.schedule.style = "constant";
  EXPECT_EQ(refused_with(config.schedule.lr_warmup_iters, int64_t{20}), "");
}

TEST_F(ValidateTest, Data) {
  EXPECT_EQ(refused_with(config.data.data_path, {}), "give --data-path PREFIX, or --mock-data");
  config.data.tokenizer_type = "GPT2BPETokenizer";
  config.data.vocab_file = "vocab.json";
  EXPECT_THAT(refused(), HasSubstr("needs both --vocab-file and --merge-file"));
  EXPECT_EQ(refused_with(config.data.merge_file, std::string("merges.txt")), "");
  for (const std::string type : {"TikTokenizer", "HFTokenizer", "Llama2Tokenizer",
                                 "HuggingFaceTokenizer", "GPTSentencePieceTokenizer"}) {
    config.data.tokenizer_type = type;
    EXPECT_THAT(refused(), HasSubstr("the " + type + " needs --tokenizer-model"));
  }
  EXPECT_EQ(refused_with(config.data.tokenizer_model, std::string("m.model")), "");
  config.data = DataConfig();
  config.data.tokenizer_type = "NullTokenizer";
  config.data.mock_data = true;
  config.data.vocab_size = 1;
  EXPECT_THAT(refused(), HasSubstr("--vocab-size (1) must be at least 2"));
  EXPECT_EQ(refused_with(config.data.vocab_size, 2), "");
}

TEST_F(ValidateTest, Run) {
  EXPECT_THAT(refused_with(config.run.seed, uint64_t{1} << 32),
              HasSubstr("--seed (4294967296) must fit in 32 bits"));
  EXPECT_THAT(refused_with(config.run.eval_interval, int64_t{0}), HasSubstr("--eval-interval (0)"));
  EXPECT_THAT(refused_with(config.run.eval_iters, int64_t{-1}), HasSubstr("--eval-iters (-1)"));
  EXPECT_THAT(refused_with(config.run.log_interval, int64_t{0}), HasSubstr("--log-interval (0)"));
  EXPECT_EQ(refused_with(config.run.distributed_timeout_minutes, 2e6),
            "--distributed-timeout-minutes (2e+06) must be at most 1000000");
  EXPECT_EQ(refused_with(config.run.distributed_timeout_minutes, 0.),
            "--distributed-timeout-minutes (0) must be positive");
  EXPECT_EQ(
      refused_with(config.run.profile_step, int64_t{1000000}),
      "--profile-step (1000000): the run ends at step " + std::to_string(config.batch.train_iters));
  EXPECT_THAT(refused_with(config.checkpoint.save_interval, int64_t{-1}),
              HasSubstr("--save-interval (-1)"));
  EXPECT_THAT(refused_with(config.checkpoint.exit_interval, int64_t{-1}),
              HasSubstr("--exit-interval (-1)"));
}

// The end of a --train-samples run depends on the checkpoint, so only the trainer knows it.
TEST_F(ValidateTest, ProfilesAnyStepOfARunOfSamples) {
  config.batch.train_samples = 20;
  config.batch.train_iters = 0;
  EXPECT_EQ(refused_with(config.run.profile_step, int64_t{1000000}), "");
}

TEST_F(ValidateTest, OneFolderHoweverItIsSpelt) {
  CheckpointConfig c;
  for (const char* load : {"runs/x", "./runs/x", "runs/x/", "runs//y/../x"}) {
    c.load = load, c.save = "runs/x";
    EXPECT_TRUE(goes_on_in_place(c)) << load;
  }
  c.load = "runs/xy";
  EXPECT_FALSE(goes_on_in_place(c));
}

TEST_F(ValidateTest, EvalItersWhoseSamplesFit) {
  config.batch.micro_batch_size = 2;
  config.run.eval_interval = 20;  // a validation there, and one at the end
  EXPECT_EQ(refused_with(config.run.eval_iters, INT64_MAX),
            "--eval-iters (9223372036854775807) x --global-batch-size (2) x validations (2) is too "
            "large; at most --eval-iters 2305843009213693951");
  EXPECT_EQ(refused_with(config.run.eval_iters, INT64_MAX / 4), "");
  EXPECT_NE(refused_with(config.run.eval_iters, INT64_MAX / 4 + 1), "");
  config.batch.train_iters = INT64_MAX / 2;
  EXPECT_EQ(refused_with(config.run.eval_iters, int64_t{9}), "");
  config.run.eval_interval = 1;
  EXPECT_THAT(refused_with(config.run.eval_iters, int64_t{9}), HasSubstr("at most --eval-iters 0"));
}

TEST_F(ValidateTest, Gpt) {
  EXPECT_EQ(refused_with(gpt.num_layers, 0), "--num-layers (0) is required and must be at least 1");
  EXPECT_THAT(refused_with(gpt.hidden_size, 0), HasSubstr("--hidden-size (0)"));
  EXPECT_THAT(refused_with(gpt.num_attention_heads, 0), HasSubstr("--num-attention-heads (0)"));
  EXPECT_THAT(refused_with(gpt.seq_length, 0), HasSubstr("--seq-length (0)"));
  EXPECT_THAT(refused_with(gpt.max_position_embeddings, 0),
              HasSubstr("--max-position-embeddings (0)"));
  EXPECT_THAT(refused_with(gpt.make_vocab_size_divisible_by, 0),
              HasSubstr("--make-vocab-size-divisible-by (0)"));
  EXPECT_THAT(refused_with(gpt.hidden_size, 1 << 30), HasSubstr("--hidden-size (1073741824)"));
  EXPECT_EQ(refused_with(gpt.num_attention_heads, 3),
            "--hidden-size (64) must be divisible by --num-attention-heads (3); or give the width "
            "of a head, --kv-channels");
  EXPECT_EQ(refused_with(gpt.max_position_embeddings, 31),
            "--max-position-embeddings (31) must be at least --seq-length (32)");
  EXPECT_THAT(refused_with(gpt.ffn_hidden_size, -1), HasSubstr("--ffn-hidden-size (-1)"));
  EXPECT_THAT(refused_with(gpt.init_method_std, 0.0), HasSubstr("--init-method-std (0)"));
  EXPECT_THAT(refused_with(gpt.layernorm_epsilon, 0.0), HasSubstr("--layernorm-epsilon (0)"));
  EXPECT_THAT(refused_with(gpt.attention_dropout, 1.0), HasSubstr("--attention-dropout (1)"));
  EXPECT_THAT(refused_with(gpt.hidden_dropout, -0.1), HasSubstr("--hidden-dropout (-0.1)"));
}

TEST_F(ValidateTest, Heads) {
  gpt.num_key_value_heads = 2;
  EXPECT_EQ(refused(), "");
  config.parallel.tp = 4;
  EXPECT_EQ(refused(4),
            "--num-key-value-heads (2) must be divisible by --tensor-model-parallel-size (4); "
            "sizes that work: 1, 2");
  config.parallel.tp = 2;
  EXPECT_EQ(refused(2), "");
  EXPECT_EQ(refused_with(gpt.num_key_value_heads, 3, 2),
            "--num-key-value-heads (3) must be positive and divide --num-attention-heads (4)");
  EXPECT_THAT(refused_with(gpt.num_key_value_heads, 8, 2), HasSubstr("must be positive and"));
  EXPECT_THAT(refused_with(gpt.num_key_value_heads, -2, 2), HasSubstr("must be positive and"));
}

TEST_F(ValidateTest, Positions) {
  EXPECT_EQ(refused_with(gpt.rotary_percent, 0.5),
            "--rotary-percent (0.5) has no effect without --use-rotary-position-embeddings");
  EXPECT_THAT(refused_with(gpt.rope_theta, 500000), HasSubstr("theta (500000) has no effect"));
  EXPECT_EQ(refused_with(gpt.position_embedding_type, std::string("alibi")), "");
  EXPECT_EQ(refused_with(gpt.position_embedding_type, std::string("rotary")),
            "--position-embedding-type (rotary) must be absolute, learned_absolute, rope, alibi or "
            "none");
  EXPECT_EQ(refused_with(gpt.position_embedding_type, std::string("rope")), "");
  EXPECT_EQ(refused_with(gpt.position_embedding_offset, 2), "");
  EXPECT_THAT(refused_with(gpt.position_embedding_offset, -1), HasSubstr("in [0, 65536]"));
  EXPECT_EQ(refused_with(gpt.add_position_embedding, false), "");
  gpt.use_rotary_position_embeddings = true;
  EXPECT_EQ(refused(), "");
  EXPECT_EQ(refused_with(gpt.add_position_embedding, false), "");
  EXPECT_EQ(refused_with(gpt.position_embedding_type, std::string("alibi")),
            "--position-embedding-type (alibi) and --use-rotary-position-embeddings exclude each "
            "other");
  EXPECT_EQ(refused_with(gpt.rotary_percent, 0.5), "");
  EXPECT_EQ(refused_with(gpt.rotary_percent, 0.0), "--rotary-percent (0) must be in (0, 1]");
  EXPECT_THAT(refused_with(gpt.rotary_percent, 1.5), HasSubstr("must be in (0, 1]"));
  EXPECT_EQ(refused_with(gpt.rotary_percent, 0.33),
            "--rotary-percent (0.33) of a head of 16 elements rotates 5 of them, which must be "
            "even and at least 2");
  EXPECT_THAT(refused_with(gpt.rotary_percent, 0.01), HasSubstr("rotates 0 of them"));
  EXPECT_THAT(refused_with(gpt.rope_theta, 0), HasSubstr("theta (0) must be at least 1"));
}

TEST_F(ValidateTest, WsdFallsBetweenTheWarmupAndTheEnd) {
  config.engine.schedule.style = "WSD";
  config.batch.train_iters = 10;
  config.schedule.lr_warmup_iters = 4;
  EXPECT_THAT(refused(), HasSubstr("--lr-wsd-decay-iters (0)"));
  EXPECT_EQ(refused_with(config.schedule.lr_wsd_decay_iters, int64_t{6}), "");
  EXPECT_THAT(refused_with(config.schedule.lr_wsd_decay_iters, int64_t{7}),
              HasSubstr("between the warmup and the end of the decay"));
  EXPECT_NE(refused_with(config.schedule.lr_wsd_decay_iters, INT64_MAX), "");
}

TEST_F(ValidateTest, OptionsOfFamilies) {
  EXPECT_EQ(refused_with(gpt.kv_channels, 7), "");
  EXPECT_THAT(refused_with(gpt.kv_channels, -1), HasSubstr("--kv-channels (-1)"));
  for (const char* size : {"127,0", "0,0", "-1,0"})
    EXPECT_EQ(refused_with(gpt.window_size, std::string(size)), "") << size;
  for (const char* size : {"127", "127,1", "-2,0", ",0", "2147483647,0", "1,0,"})
    EXPECT_THAT(refused_with(gpt.window_size, std::string(size)), HasSubstr("must be N,0")) << size;
  EXPECT_THAT(refused_with(gpt.add_qkv_bias, true), HasSubstr("without --disable-bias-linear"));
  EXPECT_THAT(refused_with(gpt.group_query_attention, true), HasSubstr("--num-query-groups"));
  gpt.relu = true;
  EXPECT_EQ(refused(), "");
  EXPECT_THAT(refused_with(gpt.geglu, true), HasSubstr("exclude each other"));
  gpt.use_rotary_position_embeddings = true;
  EXPECT_THAT(refused_with(gpt.position_embedding_offset, 2), HasSubstr("for learned positions"));
  EXPECT_THAT(refused_with(gpt.rotary_scaling_factor, 2.0), HasSubstr("without --rope-type yarn"));
  gpt.rope_type = "yarn";
  EXPECT_THAT(refused(), HasSubstr("is required by --rope-type (yarn)"));
  gpt.original_max_position_embeddings = 16;
  EXPECT_EQ(refused(), "");
  EXPECT_THAT(refused_with(gpt.beta_fast, 0.5), HasSubstr("must be above --beta-slow (1)"));
  EXPECT_THAT(refused_with(gpt.use_rope_scaling, true), HasSubstr("exclude each other"));
}

TEST_F(ValidateTest, ScaledPositions) {
  EXPECT_EQ(refused_with(gpt.use_rope_scaling, true),
            "--use-rope-scaling has no effect without --use-rotary-position-embeddings");
  EXPECT_EQ(refused_with(gpt.rotary_seq_len_interpolation_factor, 2),
            "--rotary-seq-len-interpolation-factor (2) has no effect without "
            "--use-rotary-position-embeddings");
  gpt.use_rotary_position_embeddings = true;
  EXPECT_EQ(refused_with(gpt.rope_scaling_factor, 32.0),
            "--rope-scaling-factor (32) has no effect without --use-rope-scaling");
  EXPECT_EQ(refused_with(gpt.rotary_seq_len_interpolation_factor, 2), "");
  EXPECT_EQ(refused_with(gpt.rotary_seq_len_interpolation_factor, 0),
            "--rotary-seq-len-interpolation-factor (0) must be at least 1");
  gpt.use_rope_scaling = true;
  EXPECT_EQ(refused_with(gpt.rope_scaling_factor, 32.0), "");
  EXPECT_EQ(refused_with(gpt.rope_scaling_factor, 0.5),
            "--rope-scaling-factor (0.5) must be at least 1");
  EXPECT_EQ(refused_with(gpt.rotary_seq_len_interpolation_factor, 2),
            "--rotary-seq-len-interpolation-factor (2) and --use-rope-scaling exclude each other");
}

TEST_F(ValidateTest, Architecture) {
  EXPECT_EQ(refused_with(gpt.normalization, std::string("rmsnorm")), "");
  EXPECT_EQ(refused_with(gpt.qk_layernorm_all_heads, true),
            "--qk-layernorm-all-heads has no effect without --qk-layernorm");
  gpt.qk_layernorm = true;
  EXPECT_EQ(refused_with(gpt.qk_layernorm_all_heads, true),
            "--qk-layernorm-all-heads needs --normalization rmsnorm, not --normalization "
            "(layernorm)");
  gpt.qk_layernorm = false;
  EXPECT_EQ(refused_with(gpt.normalization, std::string("batchnorm")),
            "--normalization (batchnorm) must be layernorm or rmsnorm");
  gpt.swiglu = true;
  EXPECT_EQ(refused(), "");
  EXPECT_EQ(gpt.ffn_size(), 128);
  EXPECT_EQ(refused_with(gpt.hidden_size, 20),
            "--swiglu makes the default of --ffn-hidden-size 8/3 x --hidden-size (20), down to a "
            "multiple of 64, which is 0; give one");
}

TEST_F(ValidateTest, Experts) {
  EXPECT_EQ(refused_with(gpt.moe_aux_loss_coeff, 0.1),
            "--moe-aux-loss-coeff (0.1) has no effect without --num-experts of at least 2");
  EXPECT_EQ(refused_with(gpt.num_experts, 1), "");
  EXPECT_EQ(refused_with(gpt.num_experts, 8),
            "--num-experts (8) needs --swiglu or --geglu, and --disable-bias-linear: experts are "
            "gated MLPs without biases");
  gpt.swiglu = true;
  gpt.add_bias_linear = false;
  gpt.num_experts = 8;
  EXPECT_EQ(refused(), "");
  EXPECT_EQ(refused_with(gpt.moe_router_topk, 9),
            "--moe-router-topk (9) must be from 1 to --num-experts (8)");
  EXPECT_THAT(refused_with(gpt.moe_router_topk, 1), HasSubstr("needs --moe-router-pre-softmax"));
  config.checkpoint.load = "imported";  // others train such models
  EXPECT_EQ(refused_with(gpt.moe_router_topk, 1), "");
  config.checkpoint.load.clear();
  const auto refused_layers = [&](const std::vector<int>& layers) {
    return refused_with(gpt.moe_layer_freq, layers);
  };
  EXPECT_EQ(refused_layers({0}), "--moe-layer-freq (0) must be at least 1");
  std::vector<int> layers(static_cast<size_t>(gpt.num_layers));
  EXPECT_THAT(refused_layers(layers), HasSubstr(",0]) must have a 1, since --num-experts (8)"));
  layers[1] = 1;
  EXPECT_EQ(refused_layers(layers), "");
  layers[0] = 2;
  EXPECT_THAT(refused_layers(layers), HasSubstr("--moe-layer-freq ([2,1"));
  EXPECT_THAT(refused_layers(layers), HasSubstr("]) must have items of 0 and 1"));
  layers.push_back(1);
  EXPECT_THAT(refused_layers(layers), HasSubstr(",1]) must have an item for each of --num-layers"));
  EXPECT_EQ(refused_with(gpt.moe_z_loss_coeff, -1.0), "--moe-z-loss-coeff (-1) must be at least 0");
  EXPECT_THAT(refused_with(gpt.moe_shared_expert_gate, true), HasSubstr("has no effect without"));
  gpt.moe_ffn_hidden_size = 6;
  config.parallel.tp = 4;
  EXPECT_THAT(refused(4), HasSubstr("--moe-ffn-hidden-size (6) must be divisible by "
                                    "--tensor-model-parallel-size (4)"));
}

TEST_F(ValidateTest, PlanByIterations) {
  config.parallel.tp = 2;
  config.batch.micro_batch_size = 2;
  config.schedule.lr_warmup_iters = 3;
  BatchPlan plan = plan_batches(config, 8);
  EXPECT_EQ(plan.dp, 4);
  EXPECT_EQ(plan.global_batch_size, 8);
  EXPECT_EQ(plan.num_microbatches, 1);
  EXPECT_EQ(plan.train_iters, 20);
  EXPECT_EQ(plan.lr_warmup_samples, 24);
  EXPECT_EQ(plan.lr_decay_samples, 160);
  config.batch.gradient_accumulation_steps = 3;
  EXPECT_EQ(plan_batches(config, 8).global_batch_size, 24);
  config.batch.gradient_accumulation_steps = 0;
  config.batch.global_batch_size = 32;
  config.schedule.lr_decay_iters = 10;
  plan = plan_batches(config, 8);
  EXPECT_EQ(plan.num_microbatches, 4);
  EXPECT_EQ(plan.lr_decay_samples, 320);
}

TEST_F(ValidateTest, PlanBySamples) {
  config.batch.train_iters = 0;
  config.batch.train_samples = 100;
  config.batch.global_batch_size = 8;
  config.schedule.lr_warmup_fraction = 0.125;
  BatchPlan plan = plan_batches(config, 2);
  EXPECT_EQ(plan.train_iters, 12);
  EXPECT_EQ(plan.lr_decay_samples, 100);
  EXPECT_EQ(plan.lr_warmup_samples, 12.5);
  config.schedule.lr_warmup_fraction.reset();
  config.schedule.lr_warmup_samples = 5;
  config.schedule.lr_decay_samples = 50;
  plan = plan_batches(config, 2);
  EXPECT_EQ(plan.lr_decay_samples, 50);
  EXPECT_EQ(plan.lr_warmup_samples, 5);
}

TEST_F(ValidateTest, PaddedVocabulary) {
  gpt.vocab_size = 50257;
  EXPECT_EQ(padded_vocab_size(gpt, 1), 50304);
  EXPECT_EQ(padded_vocab_size(gpt, 8), 51200);
  gpt.vocab_size = 512;
  EXPECT_EQ(padded_vocab_size(gpt, 4), 512);
  gpt.vocab_size = 257;
  gpt.make_vocab_size_divisible_by = 64;
  EXPECT_EQ(padded_vocab_size(gpt, 2), 384);
}

TEST_F(ValidateTest, AsyncSaves) {
  CheckpointConfig& checkpoint = config.checkpoint;
  checkpoint.save = "out";
  checkpoint.async_save = true;
  EXPECT_EQ(refused(), "");
  EXPECT_EQ(refused_with(checkpoint.no_save_optim, true),
            "--async-save cannot save with --no-save-optim, which gathers weights from all ranks "
            "while it writes; keep one of them");
  EXPECT_THAT(refused_with(checkpoint.save_weights_only, true), HasSubstr("--save-weights-only"));
  EXPECT_THAT(refused_with(checkpoint.save_16bit_model, true), HasSubstr("--save-16bit-model"));
  config.engine.zero.stage = 3;
  config.engine.zero.offload.nvme_path = "/disk";
  EXPECT_EQ(refused_with(config.engine.zero.offload.optimizer, std::string("nvme")),
            "--async-save cannot save with --offload-optimizer nvme, whose state it would copy to "
            "memory; keep one of them");
  EXPECT_THAT(refused_with(config.engine.zero.offload.param, std::string("nvme")),
              HasSubstr("--offload-param nvme"));
}

}  // namespace
}  // namespace anymesh
