// Compares the logits of a text that is read piece by piece, with keys and values kept, with those
// of the whole sequence as training computes them.

#include "models/gpt/generation/decoder.h"
#include "tests/support/message_of.h"
#include "tests/support/ranks.h"

namespace anymesh {
namespace {

constexpr int64_t kLength = 11, kBatch = 2;

struct DecoderCase {
  std::string architecture;
  torch::Dtype dtype = torch::kDouble;
};

// Heads have 16 elements, which training's own kernel takes in fp32.
GptConfig config_of(const std::string& architecture) {
  GptConfig c;
  c.num_layers = 3;
  c.hidden_size = 96;
  c.num_attention_heads = 6;
  c.seq_length = kLength;
  c.max_position_embeddings = kLength + 2;
  c.make_vocab_size_divisible_by = 8;
  c.vocab_size = 37;
  c.init_method_std = 0.2;
  const bool llama = architecture == "llama", neox = architecture == "neox";
  c.untie_embeddings_and_output_weights = llama || architecture == "untied";
  c.bias_gelu_fusion = architecture != "untied";
  c.use_rotary_position_embeddings = c.swiglu = llama || neox;
  if (llama || neox) c.ffn_hidden_size = 40;
  if (neox) c.rotary_percent = 0.5;
  if (llama) {
    c.normalization = "rmsnorm";
    c.add_bias_linear = false;
    c.num_key_value_heads = 2;
  }
  if (architecture == "bloom") {
    c.position_embedding_type = "alibi";
    c.embed_layernorm = true;
  }
  return c;
}

class DecoderTest : public testing::TestWithParam<DecoderCase> {};
struct DecoderTestRank : RankFixtureOf<DecoderTest> {
  // Changes every parameter, so that every bias and norm counts.
  void SetUp() override {
    torch::manual_seed(5);
    const torch::NoGradGuard no_grad;
    for (const ParamSpec& spec : model_.params()) {
      spec.materialize();
      torch::Tensor(spec.tensor).add_(torch::randn_like(spec.tensor), 0.1);
    }
  }

  // Returns [b, s, v] of whole texts, as training computes them.
  torch::Tensor whole(const torch::Tensor& tokens) {
    const torch::NoGradGuard no_grad;
    return model_.forward({}, {.inputs = tokens}).narrow(2, 0, config_.vocab_size);
  }

  void expect_close(const torch::Tensor& a, const torch::Tensor& b) {
    const double tolerance = GetParam().dtype == torch::kDouble ? 1e-12 : 1e-5;
    EXPECT_EQ(a.sizes(), b.sizes());
    EXPECT_LE((a - b).abs().max().item<double>(), tolerance * b.abs().max().item<double>());
  }

  GptConfig config_ = config_of(GetParam().architecture);
  ProcessGrid grid_{test_world(), {}};
  GptModel model_{config_, grid_, GetParam().dtype, kBatch, /*seed=*/3};
  torch::Tensor tokens_ = (torch::arange(kBatch * kLength) * 7919 % 31).view({kBatch, kLength});
};

RANKS_TEST_P(DecoderTest, PiecesOfATextHaveTheLogitsOfTheWhole) {
  const torch::Tensor expected = whole(tokens_);
  ASSERT_GT(expected.abs().max().item<double>(), 0.5);
  Decoder decoder(model_);
  for (const int64_t piece : {int64_t{1}, int64_t{4}, kLength}) {
    decoder.clear();
    while (decoder.length() < kLength) {
      const int64_t size = std::min(piece, kLength - decoder.length());
      const torch::Tensor logits = decoder.append(tokens_.narrow(1, decoder.length(), size));
      EXPECT_FALSE(logits.requires_grad());
      expect_close(logits, expected.select(1, decoder.length() - 1));
    }
  }
}

// Takes the decoder's likeliest tokens, and the likeliest by training's forward over a whole
// sample for each token.
RANKS_TEST_P(DecoderTest, LikeliestTokensAreTheSameWithoutACache) {
  constexpr int64_t kPrompt = 3;
  torch::Tensor text = tokens_.clone(), slow = tokens_.clone();
  Decoder decoder(model_);
  torch::Tensor logits = decoder.append(text.narrow(1, 0, kPrompt));
  for (int64_t at = kPrompt; at < kLength; ++at) {
    text.select(1, at).copy_(logits.argmax(-1));
    logits = decoder.append(text.narrow(1, at, 1));
    slow.select(1, at).copy_(whole(slow).select(1, at - 1).argmax(-1));
  }
  EXPECT_TRUE(torch::equal(text, slow)) << text << slow;
  EXPECT_FALSE(torch::equal(text, tokens_));
}

RANKS_TEST_P(DecoderTest, RefusesATextBeyondItsTables) {
  Decoder decoder(model_);
  decoder.append(tokens_);
  const std::string message = message_of([&] { decoder.append(tokens_.narrow(1, 0, 1)); });
  EXPECT_THAT(message, HasSubstr("a text of 12 tokens: there are tables for 11"));
  EXPECT_EQ(decoder.length(), kLength);
}

std::vector<DecoderCase> cases() {
  std::vector<DecoderCase> out;
  for (const char* architecture : {"gpt", "untied", "llama", "neox", "bloom"})
    for (const torch::Dtype dtype : {torch::kDouble, torch::kFloat})
      out.push_back({architecture, dtype});
  return out;
}

INSTANTIATE_TEST_SUITE_P(Architectures, DecoderTest, testing::ValuesIn(cases()),
                         [](const auto& info) {
                           const bool twice = info.param.dtype == torch::kDouble;
                           return info.param.architecture + (twice ? "Double" : "Float");
                         });

}  // namespace
}  // namespace anymesh
