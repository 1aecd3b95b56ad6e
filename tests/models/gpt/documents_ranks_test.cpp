// A document in a sample of several is what it is alone.
#include <ATen/Functions.h>

#include "models/gpt/documents.h"
#include "models/gpt/gpt_model.h"
#include "tests/support/tiny_run.h"

namespace anymesh {
namespace {

constexpr int64_t kEnd = 32;

GptConfig separated() {
  GptConfig c = tiny();
  c.attention_dropout = c.hidden_dropout = 0;
  c.seq_length = c.max_position_embeddings = 10;
  c.eod_token = kEnd;
  c.reset_position_ids = c.reset_attention_mask = c.eod_mask_loss = true;
  return c;
}

torch::Tensor row(const std::vector<int64_t>& tokens) {
  return torch::tensor(tokens, torch::kLong).unsqueeze(0);
}

TEST(Documents, StartsAndPositions) {
  const torch::Tensor tokens = at::cat(
      {row({1, 2, kEnd, 3, 4, 5, kEnd, 6, 7, 8}), row({kEnd, kEnd, 1, 2, 3, 4, 5, 6, 7, kEnd})});
  const LayerContext context = layer_context({.inputs = tokens}, separated());
  EXPECT_TRUE(at::equal(context.positions, at::cat({row({0, 1, 2, 0, 1, 2, 3, 0, 1, 2}),
                                                    row({0, 0, 0, 1, 2, 3, 4, 5, 6, 7})})));
  EXPECT_TRUE(at::equal(context.first_keys, at::cat({row({0, 0, 0, 3, 3, 3, 3, 7, 7, 7}),
                                                     row({0, 1, 2, 2, 2, 2, 2, 2, 2, 2})})));
  const LayerContext plain = layer_context({.inputs = tokens}, tiny());
  EXPECT_FALSE(plain.positions.defined() || plain.first_keys.defined());
}

TEST(Documents, LossCountsNoGuessAtTheNextDocument) {
  const torch::Tensor losses = at::arange(10, torch::kDouble).unsqueeze(0);
  const MicroBatch batch{.inputs = row({1, 2, kEnd, 3, 4, 5, kEnd, 6, 7, 8})};
  EXPECT_EQ(mean_loss(losses, batch.inputs, separated()).item<double>(), (45 - 2 - 6) / 8.0);
  EXPECT_EQ(mean_loss(losses, batch.inputs, tiny()).item<double>(), 4.5);
  const MicroBatch none{.inputs = at::full({1, 10}, kEnd, torch::kLong)};
  EXPECT_EQ(mean_loss(losses, none.inputs, separated()).item<double>(), 0);
}

RANKS_TEST(Documents, ADocumentIsWhatItIsAlone) {
  const ProcessGrid grid(test_world(), Topology{});
  for (const bool rotary : {false, true}) {
    GptConfig config = separated();
    config.use_rotary_position_embeddings = rotary;
    GptModel model(config, grid, torch::kDouble, /*micro_batch_size=*/1, /*seed=*/5);
    for (const ParamSpec& spec : model.params()) spec.materialize();
    const auto logits = [&](const torch::Tensor& tokens) {
      c10::NoGradGuard no_grad;
      return model.forward({}, {.inputs = tokens});
    };
    const torch::Tensor packed = logits(row({1, 2, kEnd, 3, 4, 5, kEnd, 6, 7, 8}));
    const std::vector<std::vector<int64_t>> documents{{1, 2, kEnd}, {3, 4, 5, kEnd}, {6, 7, 8}};
    int64_t first = 0;
    for (const auto& document : documents) {
      const auto count = static_cast<int64_t>(document.size());
      EXPECT_TRUE(at::allclose(packed.narrow(1, first, count), logits(row(document)), 1e-12, 1e-12))
          << "document at " << first << ", rotary " << rotary;
      first += count;
    }
  }
}

}  // namespace
}  // namespace anymesh
