// The accuracy of gradients with --same-bits. tests/runs/same_bits.sh shows that they have the same
// bits on every mesh.
#include <cmath>

#include "framework/pipeline/pipeline_engine.h"
#include "framework/zero/zero_optimizer.h"
#include "models/gpt/gpt_model.h"
#include "tests/support/ranks.h"

namespace anymesh {
namespace {

constexpr int64_t kSamples = 4, kParts = 2, kSeq = 128, kVocab = 128;

GptConfig small_model() {
  GptConfig c;
  c.num_layers = 2;
  c.hidden_size = 64;
  c.num_attention_heads = 4;
  c.seq_length = c.max_position_embeddings = kSeq;
  c.vocab_size = kVocab;
  c.make_vocab_size_divisible_by = 16;  // no padding for 8 blocks
  return c;
}

// All gradients, one after the other, of weights that every dtype has. `blocks` are --same-bits's.
torch::Tensor gradients(torch::Dtype dtype, int blocks) {
  ProcessGrid grid(test_world(), Topology{});
  grid.same_bits = SameBits::of(blocks, kSeq);
  GptModel model(small_model(), grid, dtype, kSamples, /*seed=*/1);
  ZeroOptimizer optimizer(model.params(), grid, {});
  torch::manual_seed(1);
  for (const ParamSpec& spec : model.params())
    spec.tensor.detach().copy_((torch::randn(spec.tensor.sizes()) / 8).to(torch::kBFloat16));
  model.runner().set_observer(&optimizer);
  PipelineEngine engine(model, grid);
  std::vector<MicroBatch> batches;
  for (int64_t i = 0; i < kParts; ++i) {
    const torch::Tensor tokens = torch::randint(kVocab, {kSamples, kSeq + 1}, torch::kLong);
    batches.push_back({tokens.narrow(1, 0, kSeq), tokens.narrow(1, 1, kSeq)});
  }
  optimizer.begin_step(1, kSamples * kParts);
  engine.forward_backward(batches,
                          1.0 / static_cast<double>(blocks > 0 ? kSamples * kParts : kParts));
  optimizer.reduce_gradients();
  model.runner().set_observer(nullptr);
  std::vector<torch::Tensor> all;
  for (const auto& group : optimizer.groups())
    for (const auto& piece : group.pieces) all.push_back(piece.gradient.to(torch::kDouble));
  return torch::cat(all);
}

RANKS_TEST(SameBits, GradientsAreAsNearToFloat64AsOthers) {
  const torch::Tensor exact = gradients(torch::kDouble, 0);
  for (const torch::Dtype dtype : {torch::kFloat, torch::kBFloat16, torch::kHalf}) {
    const auto error = [&](int blocks) {
      return ((gradients(dtype, blocks) - exact).norm() / exact.norm()).item<double>();
    };
    const double without = error(0);
    for (const int blocks : {1, 4, 8}) {
      EXPECT_LT(error(blocks), 1.05 * without) << dtype << ", " << blocks << " blocks";
    }
  }
}

}  // namespace
}  // namespace anymesh
