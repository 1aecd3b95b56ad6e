// Backwards in two halves, and parameters that are gathered beside the next forward, against
// backwards in one piece and a gather before it: the same bits.
#include "tests/support/gpt_flags.h"
#include "tests/support/tiny_run.h"

namespace anymesh {
namespace {

using Overlap = SharedFolder;

TinyOptions with_dropout(const std::string& flags = "") {
  TinyOptions options;
  options.gpt.num_layers = 4;
  options.gpt.hidden_dropout = options.gpt.attention_dropout = 0.1;
  options.gpt = with_flags(options.gpt, flags);
  return options;
}

// Trains three steps both ways and compares what they report and what each rank holds after them.
void expect_same(const Topology& mesh, int stage, const TinyOptions& plain,
                 const TinyOptions& other) {
  TinyRun a(mesh, stage, plain), b(mesh, stage, other);
  for (int step = 0; step < 3; ++step) {
    const StepReport x = a.engine.train_batch(a.batches()), y = b.engine.train_batch(b.batches());
    EXPECT_EQ(x.lm_loss, y.lm_loss) << describe(mesh) << " ZeRO " << stage << ", step " << step;
    EXPECT_EQ(x.grad_norm, y.grad_norm) << describe(mesh) << " ZeRO " << stage << ", step " << step;
  }
  EXPECT_TRUE(same(a.state(), b.state())) << describe(mesh) << " ZeRO " << stage;
  EXPECT_EQ(a.engine.eval_batch(a.batches()), b.engine.eval_batch(b.batches()));
}

void expect_zero_bubble_same(const Topology& mesh, int stage, TinyOptions options) {
  const TinyOptions plain = options;
  options.pipeline_schedule = "zb-h1";
  expect_same(mesh, stage, plain, options);
}

RANKS_TEST_F(Overlap, ZeroBubbleChangesNothing) {
  for (const int stage : {0, 1, 2, 3}) {
    for (const Topology& mesh : {kPipes, kSplit, Topology{.pp_size = 4}})
      expect_zero_bubble_same(mesh, stage, with_dropout());
    TinyOptions options = with_dropout("--untie-embeddings-and-output-weights");
    options.sequence_parallel = options.activation_checkpointing = true;
    options.dtype = torch::kBFloat16;
    expect_zero_bubble_same(kSplit, stage, options);
  }
}

RANKS_TEST_F(Overlap, ZeroBubbleWithPartsOfALayerRecomputedOrAdapters) {
  TinyOptions parts = with_dropout(), adapters = with_dropout("--lora-rank 2");
  parts.gpt.recompute_modules = {"core_attn", "mlp"};
  parts.dtype = torch::kHalf;
  for (const int stage : {0, 3}) {
    expect_zero_bubble_same(kPipes, stage, parts);
    expect_zero_bubble_same(kPipes, stage, adapters);
  }
}

RANKS_TEST_F(Overlap, ZeroBubbleWithExpertsAndFrozenParameters) {
  TinyOptions options = with_dropout(
      "--swiglu --disable-bias-linear --ffn-hidden-size 8 --moe-ffn-hidden-size 8 "
      "--num-experts 4 --moe-aux-loss-coeff 0.1");
  options.freeze = {"word_embeddings"};
  for (const int stage : {1, 3})
    expect_zero_bubble_same({.pp_size = 2, .dp_size = 2, .ep_size = 2}, stage, options);
}

RANKS_TEST_F(Overlap, ParametersGatheredBesideTheForward) {
  for (const int stage : {1, 2}) {
    for (const Topology& mesh : {kData, kPipes, kSlices}) {
      TinyOptions plain = with_dropout(), beside = plain;
      beside.overlap_param_gather = true;
      expect_same(mesh, stage, plain, beside);
    }
  }
}

// A save or a load in between has complete parameters.
RANKS_TEST_F(Overlap, ParametersAreCompleteInASave) {
  TinyOptions plain = with_dropout(), beside = plain;
  beside.overlap_param_gather = true;
  TinyRun a(kData, 1, plain), b(kData, 1, beside);
  a.train_and_save(2, folder_ / "plain");
  b.train_and_save(2, folder_ / "beside");
  for (const auto& [mine, other] : {std::pair(&a, "beside"), {&b, "plain"}}) {
    mine->train(1);
    mine->engine.load_checkpoint(folder_ / other);
  }
  for (size_t i = 0; i < a.model.params().size(); ++i)
    EXPECT_TRUE(torch::equal(a.model.params()[i].tensor, b.model.params()[i].tensor));
  EXPECT_EQ(a.train(1), b.train(1));
}

}  // namespace
}  // namespace anymesh
