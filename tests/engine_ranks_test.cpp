// The engine's checkpoint API, argument by argument.
#include <fstream>

#include "framework/checkpoint/torch_bridge.h"
#include "framework/comm/agreement.h"
#include "framework/format/io.h"
#include "framework/format/layout.h"
#include "framework/format/torch_file.h"
#include "tests/support/tiny_run.h"

namespace anymesh {
namespace {

using EngineApi = SharedFolder;

RANKS_TEST_F(EngineApi, SavesUnderTheStepAndResumesBitForBit) {
  for (const auto& [stage, dtype] :
       std::vector<std::pair<int, torch::Dtype>>{{0, torch::kFloat},
                                                 {1, torch::kFloat},
                                                 {2, torch::kFloat},
                                                 {3, torch::kFloat},
                                                 {0, torch::kDouble},
                                                 {1, torch::kDouble},
                                                 {3, torch::kDouble}}) {
    TinyRun run(kData, stage, {.dtype = dtype});
    run.train(3);
    EXPECT_EQ(run.engine.save_checkpoint(folder_), folder_ / "global_step3");
    const double expected = run.train(2);

    // Loads into the engine that has just saved. DeepSpeed refuses this at stage 3.
    EXPECT_EQ(run.engine.load_checkpoint(folder_).path, folder_ / "global_step3");
    EXPECT_EQ(run.engine.state().iteration, 3);
    EXPECT_EQ(run.train(2), expected);

    TinyRun other(kData, stage, {.dtype = dtype});
    EXPECT_EQ(other.engine.load_checkpoint(folder_).path, folder_ / "global_step3");
    EXPECT_EQ(other.train(2), expected);
  }
}

RANKS_TEST_F(EngineApi, TagsAndLatest) {
  TinyRun run(kSplit, 1);
  run.train(1);
  EXPECT_EQ(run.engine.save_checkpoint(folder_, {.tag = "first"}), folder_ / "first");
  run.train(1);
  run.engine.save_checkpoint(folder_, {.tag = "second", .save_latest = false});
  EXPECT_EQ(read_text(folder_ / kLatestFile), "first");

  TinyRun other(kSplit, 1);
  EXPECT_EQ(other.engine.load_checkpoint(folder_).path, folder_ / "first");
  EXPECT_EQ(other.engine.state().iteration, 1);
  EXPECT_EQ(other.engine.load_checkpoint(folder_, {.tag = "second"}).path, folder_ / "second");
  EXPECT_EQ(other.engine.state().iteration, 2);
  EXPECT_REFUSES(other.engine.load_checkpoint(folder_, {.tag = "third"}),
                 "--load-tag names 'third', which is not a folder", "first");
  for (const std::string tag :
       {"a/b", "..", "new\nline", "space ", "latest", "best.tmp", "best.old"}) {
    EXPECT_REFUSES(run.engine.save_checkpoint(folder_, {.tag = tag}),
                   "is not the name of a folder");
  }
}

RANKS_TEST_F(EngineApi, AFolderWithoutCheckpointsLoadsNothing) {
  TinyRun run(kData, 2);
  const LoadResult loaded = run.engine.load_checkpoint(folder_);
  EXPECT_FALSE(loaded.path);
  EXPECT_FALSE(loaded.client_state);
  EXPECT_THAT(loaded.report.back(), HasSubstr("no such folder; nothing was loaded"));
  EXPECT_EQ(run.engine.state().iteration, 0);
}

RANKS_TEST_F(EngineApi, RanksThatDisagreeAboutTheTag) {
  const std::string mine = "rank" + std::to_string(test_world()->rank());
  TinyRun strict(kData, 1, {.tags = TagValidation::Fail});
  EXPECT_REFUSES(strict.engine.save_checkpoint(folder_, {.tag = mine}), "rank 0 has 'rank0'",
                 "'rank1'", "Nothing was written");
  EXPECT_FALSE(fs::exists(folder_));
  for (const TagValidation tags : {TagValidation::Ignore, TagValidation::Warn}) {
    TinyRun run(kData, 1, {.tags = tags});
    EXPECT_EQ(run.engine.save_checkpoint(folder_, {.tag = mine}), folder_ / "rank0");
    EXPECT_EQ(read_text(folder_ / kLatestFile), "rank0");
  }
}

RANKS_TEST_F(EngineApi, ClientStateComesBack) {
  const torch::Tensor tensor = torch::arange(6, torch::kFloat).view({2, 3});
  const Value state =
      Value::dict({{"epoch", 3},
                   {"name", "run"},
                   {"none", {}},
                   {"nested", Value::list({1, 2.5, Value::tuple({true, "x"}),
                                           Value::dict({{"weights", record_of(tensor)}})})}});
  for (const int stage : {0, 3}) {
    TinyRun run(stage == 0 ? kSplit : kData, stage);
    run.engine.save_checkpoint(folder_, {.client_state = state});
    TinyRun other(kData, 1);
    const LoadResult loaded = other.engine.load_checkpoint(folder_);
    EXPECT_EQ(loaded.client_state, state);
    // The loaded client state may be given to the next save.
    other.engine.save_checkpoint(folder_, {.client_state = loaded.client_state});
    EXPECT_EQ(run.engine.load_checkpoint(folder_).client_state, state);
  }
  TinyRun run(kData, 1);
  const auto save = [&](Value client_state) {
    return [&run, client_state, this] {
      run.engine.save_checkpoint(folder_, {.client_state = client_state});
    };
  };
  EXPECT_THAT(message_of(save(Value::dict({{"module", 1}}))), HasSubstr("the checkpoint's own"));
  EXPECT_THAT(message_of(save(Value::dict({{1, 1}}))), HasSubstr("is not a string"));
  EXPECT_THAT(message_of(save(7)), HasSubstr("expected a dict"));
}

RANKS_TEST_F(EngineApi, LoadsParts) {
  TinyRun run(kData, 2);
  run.train(5);
  run.engine.save_checkpoint(folder_);
  const double eval = run.engine.eval_batch(run.batches());
  const auto moments = [](const Engine& engine) {
    double sum = 0;
    for (const auto& group : engine.optimizer().groups())
      sum += group.states[1].tensor().abs().sum().item<double>();
    return sum;
  };
  const auto load = [&](const LoadOptions& options, TinyRun& other) {
    other.engine.load_checkpoint(folder_, options);
    TrainState& state = other.engine.state();
    const int64_t samples = state.consumed_train_samples;
    state.consumed_train_samples = 20;  // the same samples as `eval`
    EXPECT_EQ(other.engine.eval_batch(other.batches()), eval);
    state.consumed_train_samples = samples;
  };
  TinyRun module_only(kData, 2);
  load({.load_module_only = true}, module_only);
  EXPECT_EQ(module_only.engine.state().iteration, 0);
  EXPECT_EQ(module_only.engine.state().consumed_train_samples, 0);
  EXPECT_EQ(module_only.engine.optimizer().steps, 0);
  EXPECT_EQ(moments(module_only.engine), 0);

  TinyRun no_optimizer(kData, 2);
  load({.load_optimizer_states = false}, no_optimizer);
  EXPECT_EQ(no_optimizer.engine.state().iteration, 5);
  EXPECT_EQ(moments(no_optimizer.engine), 0);
  EXPECT_EQ(no_optimizer.engine.learning_rate(), run.engine.learning_rate());

  TinyRun no_schedule(kData, 2);
  load({.load_lr_scheduler_states = false}, no_schedule);
  EXPECT_EQ(no_schedule.engine.state().iteration, 5);
  EXPECT_EQ(moments(no_schedule.engine), moments(run.engine));
  EXPECT_EQ(no_schedule.engine.learning_rate(), 0.01);

  TinyRun other_schedule(kData, 2, {.schedule = {.max_lr = 0.02, .decay_samples = 400}});
  EXPECT_REFUSES(other_schedule.engine.load_checkpoint(folder_),
                 "max_lr: checkpoint 0.01, this run 0.02");
}

RANKS_TEST_F(EngineApi, AScheduleOfOnesOwnIsKnownByItsName) {
  const auto with = [](const std::string& style, double times) {
    LrSchedule schedule{.max_lr = 0.01, .decay_samples = 400, .style = style};
    schedule.factor = [times](double samples) { return times / (1 + samples); };
    return TinyOptions{.schedule = schedule};
  };
  TinyRun run(kData, 1, with("one over samples", 1));
  run.train(2);
  EXPECT_EQ(run.engine.learning_rate(), 0.01 / 9);
  run.engine.save_checkpoint(folder_);

  TinyRun same(kSplit, 0, with("one over samples", 1));
  same.engine.load_checkpoint(folder_);
  EXPECT_EQ(same.engine.learning_rate(), 0.01 / 9);
  TinyRun other(kSplit, 0, with("two over samples", 2)), built_in(kSplit, 0);
  EXPECT_REFUSES(other.engine.load_checkpoint(folder_),
                 "lr_decay_style: checkpoint one over samples, this run two over samples");
  EXPECT_REFUSES(built_in.engine.load_checkpoint(folder_),
                 "lr_decay_style: checkpoint one over samples, this run linear");
  using enum LoadOptions::Schedule;
  EXPECT_REFUSES(built_in.engine.load_checkpoint(folder_, {.schedule = Checkpoints}),
                 "schedule is \"one over samples\", which this program does not have; "
                 "--override-opt_param-scheduler goes on with this run's, \"linear\"");
  other.engine.load_checkpoint(folder_, {.schedule = ThisRuns});
  EXPECT_EQ(other.engine.learning_rate(), 0.02 / 9);

  TinyRun plain(kData, 1);
  plain.train(2);
  plain.engine.save_checkpoint(folder_ / "plain");
  same.engine.load_checkpoint(folder_ / "plain", {.schedule = Checkpoints});
  EXPECT_EQ(same.engine.learning_rate(), plain.engine.learning_rate());
}

RANKS_TEST_F(EngineApi, StrictAndNotStrict) {
  TinyRun run(kData, 1);
  run.train(2);
  run.engine.save_checkpoint(folder_);
  GptConfig untied = tiny();
  untied.untie_embeddings_and_output_weights = true;
  untied.num_layers = 3;
  TinyRun other(kSplit, 1, {.gpt = untied});
  const std::string error = message_of([&] { other.engine.load_checkpoint(folder_); });
  EXPECT_THAT(error, HasSubstrs("missing in the checkpoint: ", "1.word_embeddings.weight",
                                "6.lm_head.weight", "unexpected",
                                "tied_modules.embed.word_embeddings.weight", "Nothing was loaded"));
  EXPECT_EQ(other.engine.state().iteration, 0);
  const LoadResult loaded = other.engine.load_checkpoint(folder_, {.load_module_strict = false});
  EXPECT_EQ(loaded.path, folder_ / "global_step2");
  EXPECT_THAT(loaded.report[0],
              HasSubstrs("WARNING", "6.lm_head.weight", "keep the values they start with"));
  GptConfig wide = tiny();
  wide.hidden_size = 32;
  TinyRun wider(kData, 1, {.gpt = wide});
  EXPECT_REFUSES(wider.engine.load_checkpoint(folder_, {.load_module_strict = false}),
                 "this model's [33, 32]");
}

// A vocabulary that grew has its old rows from the checkpoint, and new ones of 0.
RANKS_TEST_F(EngineApi, CustomLoadFunction) {
  TinyRun run(kData, 1);
  run.train(2);
  run.engine.save_checkpoint(folder_);
  GptConfig grown = tiny();
  grown.vocab_size = 40;
  TinyRun other(kSplit, 3, {.gpt = grown});
  const CustomLoadFn grow = [](const Checkpoint& source,
                               const ParamSpec& spec) -> std::optional<torch::Tensor> {
    if (!spec.vocabulary) return std::nullopt;
    torch::Tensor whole = torch::zeros(spec.shape);
    read_elements(source.parameter(spec.name).weight(), 0, whole.narrow(0, 0, 33).view(-1),
                  spec.name);
    return whole;
  };
  EXPECT_REFUSES(other.engine.load_checkpoint(folder_), "the checkpoint's vocabulary has 33");
  other.engine.load_checkpoint(folder_, {.custom_load_fn = grow});
  EXPECT_EQ(other.engine.state().iteration, 2);
  other.engine.save_checkpoint(folder_ / "grown");
  const Checkpoint before = open_checkpoint(folder_, 1),
                   after = open_checkpoint(folder_ / "grown", 1);
  for (const std::string& name : before.names()) {
    const auto tensor = [&name](const Checkpoint& checkpoint, std::string_view state) {
      const TensorRecord record = checkpoint.parameter(name).state(state);
      torch::Tensor out = torch::empty(record.shape, torch::kFloat);
      read_elements(record, 0, out.view(-1), name);
      return out;
    };
    torch::Tensor weight = tensor(after, kFp32State), moment = tensor(after, kExpAvgState);
    const bool grew = weight.size(0) == 40;
    if (grew) {
      EXPECT_EQ(weight.narrow(0, 33, 7).abs().sum().item<float>(), 0);
      EXPECT_EQ(moment.abs().sum().item<float>(), 0);
      weight = weight.narrow(0, 0, 33);
    } else {
      EXPECT_TRUE(torch::equal(moment, tensor(before, kExpAvgState))) << name;
    }
    EXPECT_TRUE(torch::equal(weight, tensor(before, kFp32State))) << name;
  }
}

// On CPUs, stages 2 and 3 send gradients in the weights' dtype anyway. Stage 1 rounds a rank's sums.
RANKS_TEST_F(EngineApi, GradientsTravelInBf16) {
  for (const int stage : {1, 2, 3}) {
    const TinyOptions plain{.dtype = torch::kBFloat16};
    TinyOptions bf16 = plain;
    bf16.grad_reduce_in_bf16 = true;
    TinyRun a(kPipes, stage, plain), b(kPipes, stage, bf16);
    const StepReport one = a.engine.train_batch(a.batches()),
                     other = b.engine.train_batch(b.batches());
    EXPECT_EQ(one.lm_loss, other.lm_loss);
    EXPECT_EQ(one.grad_norm == other.grad_norm, stage > 1);
    EXPECT_NEAR(one.grad_norm, other.grad_norm, one.grad_norm / 256);
    EXPECT_NEAR(a.train(3), b.train(3), 0.05);
  }
}

RANKS_TEST_F(EngineApi, ARankThatDoesNotComeIsNamed) {
  const CommPtr part = test_world()->split(0, test_world()->rank());
  if (test_world()->rank() != 2) {
    EXPECT_EQ(part->roll_call(std::chrono::milliseconds(300)), (std::vector<int>{2}));
  }
  const CommPtr without_root = test_world()->split(0, test_world()->rank());
  if (test_world()->rank() != 0) {
    EXPECT_EQ(without_root->roll_call(std::chrono::milliseconds(100)), (std::vector<int>{0}));
  }
  EXPECT_TRUE(test_world()->roll_call(std::chrono::seconds(20)).empty());

  const CommPtr world = test_world()->split(0, test_world()->rank());
  TinyRun run(kSplit, 1, {.world = world});
  if (world->rank() != 3) {
    EXPECT_REFUSES(run.engine.save_checkpoint(folder_),
                   "save_checkpoint: rank 3 (pp 1, dp 0, tp 1) did not call it within 2 s");
  }
}

}  // namespace
}  // namespace anymesh
