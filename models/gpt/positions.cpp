#include "models/gpt/positions.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>
#include <vector>

namespace anymesh {
namespace {

// Scales frequencies by their full turns in the context of pretraining. A frequency of many turns
// stays, one of few is divided by the factor, and in between is a blend of both.
torch::Tensor scaled_as_llama3(const torch::Tensor& frequencies, double factor) {
  const torch::Tensor turns = frequencies * kLlama3Context / (2 * std::numbers::pi);
  const torch::Tensor kept =
      at::clamp((turns - kLlama3LowFrequency) / (kLlama3HighFrequency - kLlama3LowFrequency), 0, 1);
  return frequencies * (kept + (1 - kept) / factor);
}

// Returns a slope for each head: 2^(-8/n), 2^(-16/n), ... for a power of two. Other numbers of
// heads take the slopes of the power below, then every second one of the power above.
std::vector<double> alibi_slopes(int heads) {
  const int power = static_cast<int>(std::bit_floor(static_cast<unsigned>(heads)));
  std::vector<double> slopes;
  for (int i = 0; i < heads; ++i) {
    const double step = i < power ? i + 1 : i - power + 0.5;
    slopes.push_back(std::exp2(-8.0 * step / power));
  }
  return slopes;
}

// Returns the pair of an r wide head that makes so many turns in the context of pretraining.
double pair_of_turns(double turns, const GptConfig& config) {
  return config.rotary_width() *
         std::log(config.original_max_position_embeddings / (turns * 2 * std::numbers::pi)) /
         (2 * std::log(config.rope_theta.value));
}

// Divides by the factor the frequencies of pairs that make few turns, and keeps those of many. The
// parts in between grow with the pair's number.
torch::Tensor scaled_as_yarn(const torch::Tensor& frequencies, const GptConfig& config) {
  const double low = std::max(std::floor(pair_of_turns(config.beta_fast, config)), 0.0),
               high = std::min(std::ceil(pair_of_turns(config.beta_slow, config)),
                               config.rotary_width() - 1.0);
  const torch::Tensor pairs = torch::arange(frequencies.size(0), torch::kDouble);
  const torch::Tensor scaled =
      at::clamp((pairs - low) / (high == low ? 0.001 : high - low), 0, 1);  // part, by pair
  return frequencies * (1 - scaled + scaled / config.rotary_scaling_factor);
}

// yarn also makes scores larger, by this factor of queries and of keys.
double rotary_magnitude(const GptConfig& config) {
  return config.rope_type == "yarn" ? 0.1 * std::log(config.rotary_scaling_factor) + 1 : 1;
}

// dynamic: the base grows with the part of a sample that exceeds the context of pretraining.
double rotary_base(const GptConfig& config) {
  const double theta = config.rope_theta, r = config.rotary_width(),
               length = static_cast<double>(config.seq_length) /
                        std::max(1, config.original_max_position_embeddings),
               factor = config.rotary_scaling_factor;
  if (config.rope_type != "dynamic" || length <= 1) return theta;
  return theta * std::pow(factor * length - (factor - 1), r / (r - 2));
}

torch::Tensor alibi_bias(const GptConfig& config, const Communicator& tp, torch::Dtype dtype) {
  const int64_t heads = config.num_attention_heads / tp.size();
  const torch::Tensor slopes =
      torch::tensor(alibi_slopes(config.num_attention_heads), torch::kDouble)
          .narrow(0, tp.rank() * heads, heads)
          .to(dtype)
          .view({1, heads, 1, 1});
  const torch::Tensor position = torch::arange(config.seq_length, dtype);
  const torch::Tensor distance = position.unsqueeze(1) - position;  // [s, s], of query and key
  torch::Tensor hidden = distance < 0;
  if (config.window() > 0) hidden = hidden.logical_or(distance >= config.window());
  return (-slopes * distance).masked_fill_(hidden, -INFINITY);
}

}  // namespace

torch::Tensor rotary_frequencies(const GptConfig& config) {
  const int64_t r = config.rotary_width();
  const torch::Tensor exponents = torch::arange(0, r, 2, torch::kDouble) / r;
  torch::Tensor frequencies = torch::pow(rotary_base(config), -exponents);
  if (config.use_rope_scaling)
    frequencies = scaled_as_llama3(frequencies, config.rope_scaling_factor);
  if (config.rope_type == "yarn") frequencies = scaled_as_yarn(frequencies, config);
  return frequencies / config.rotary_seq_len_interpolation_factor.value;
}

RelativePositions::RelativePositions(const GptConfig& config, const Communicator& tp,
                                     const torch::TensorOptions& options) {
  if (config.rotary()) {
    const torch::Tensor angles =  // [s, r/2]
        at::outer(torch::arange(config.seq_length, torch::kDouble), rotary_frequencies(config));
    cos = (angles.cos() * rotary_magnitude(config)).to(options);
    sin = (angles.sin() * rotary_magnitude(config)).to(options);
  }
  if (config.alibi()) {
    const bool twice = options.dtype() == torch::kDouble;
    score_bias =
        alibi_bias(config, tp, twice ? torch::kDouble : torch::kFloat).to(options.device());
  }
}

}  // namespace anymesh
