#include "models/gpt/positions.h"

#include <gtest/gtest.h>

namespace anymesh {
namespace {

// theta 500000 and a head of 16: wavelengths of 6, 32, 167, 862 | 4443 | 22910, 118142 and 609223
// tokens. The marks | are Llama 3's bounds, 2048 and 8192.
GptConfig llama() {
  GptConfig c;
  c.hidden_size = 64;
  c.num_attention_heads = 4;
  c.use_rotary_position_embeddings = true;
  c.rope_theta = 500000;
  return c;
}

// The digits come from transformers' ROPE_INIT_FUNCTIONS (5.23.0), which computes in fp32.
void expect_frequencies(const GptConfig& config, const std::vector<double>& expected) {
  const torch::Tensor frequencies = rotary_frequencies(config);
  ASSERT_EQ(frequencies.size(0), static_cast<int64_t>(expected.size()));
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_NEAR(frequencies[static_cast<int64_t>(i)].item<double>() / expected[i], 1, 1e-6) << i;
}

TEST(RotaryFrequencies, AreThoseOfLlama31) {
  GptConfig config = llama();
  config.use_rope_scaling = true;
  expect_frequencies(config, {1, 0.1939228, 0.03760603, 0.007292665, 0.000524846, 3.428102e-05,
                              6.64787e-06, 1.289173e-06});
  config.rope_scaling_factor = 32;  // Llama 3.2
  expect_frequencies(config, {1, 0.1939228, 0.03760603, 0.007292665, 0.0004295567, 8.570256e-06,
                              1.661967e-06, 3.222933e-07});
}

TEST(RotaryFrequencies, AreDividedByTheInterpolationFactor) {
  GptConfig config = llama();
  config.rotary_seq_len_interpolation_factor = 4;
  expect_frequencies(config, {0.25, 0.04848069, 0.009401508, 0.001823166, 0.0003535534,
                              6.856205e-05, 1.329574e-05, 2.578346e-06});
}

TEST(RotaryFrequencies, OnlyThePartThatRotatesHasThem) {
  GptConfig config = llama();
  config.rotary_percent = 0.5;
  expect_frequencies(config, {1, 0.03760603, 0.001414214, 5.318296e-05});
}

TEST(RotaryFrequencies, AreThoseOfYarn) {
  GptConfig config = llama();
  config.rope_type = "yarn";
  config.rotary_scaling_factor = 4;
  config.original_max_position_embeddings = 32768;
  expect_frequencies(config, {1, 0.1939228, 0.03760603, 0.007292665, 0.00106066, 0.0001371241,
                              1.329574e-05, 2.578346e-06});
  config.rope_theta = 10000;
  config.rotary_scaling_factor = 8;
  config.original_max_position_embeddings = 1024;
  config.beta_fast = 16;
  config.beta_slow = 2;
  expect_frequencies(
      config, {1, 0.3162278, 0.1, 0.01778781, 0.00125, 0.0003952847, 0.000125, 3.952847e-05});
}

TEST(RotaryFrequencies, DynamicOnesDependOnTheSamplesLength) {
  GptConfig config = llama();
  config.rope_type = "dynamic";
  config.rotary_scaling_factor = 2;
  config.original_max_position_embeddings = 1024;
  config.seq_length = 3072;
  expect_frequencies(config, {1, 0.1540905, 0.02374388, 0.003658707, 0.000563772, 8.687192e-05,
                              1.338614e-05, 2.062677e-06});
  config.seq_length = 1024;
  expect_frequencies(config, {1, 0.1939228, 0.03760603, 0.007292665, 0.001414213, 0.0002742482,
                              5.318296e-05, 1.031339e-05});
}

}  // namespace
}  // namespace anymesh
