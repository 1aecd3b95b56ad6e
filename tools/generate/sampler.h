#pragma once

#include <cstdint>
#include <span>

namespace anymesh {

// Options for drawing the next token from the model's logits.
struct SamplingOptions {
  double temperature = 1;  // divides the logits; 0: always the likeliest token
  int top_k = 0;           // among the k likeliest only; 0: all
  double top_p = 0;        // among the fewest likeliest that have this probability together; 0: all
  uint64_t seed = 1234;
};

// Throws a UserError that names the flag.
void validate(const SamplingOptions& options);

// Draws one token after the other. The n-th draw is a function of the seed, n and the logits. If
// tokens are equally likely, the lower number comes first. With both limits, top_p applies to the
// tokens that top_k leaves.
class Sampler {
 public:
  // REQUIRES: valid options.
  explicit Sampler(SamplingOptions options) : options_(options) {}

  // logits [v] -> a token in [0, v). Throws for logits that are not finite.
  int32_t next(std::span<const float> logits);

 private:
  SamplingOptions options_;
  uint64_t drawn_ = 0;
};

}  // namespace anymesh
