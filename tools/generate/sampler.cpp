#include "tools/generate/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "framework/config/require.h"
#include "framework/kernels/philox.h"

namespace anymesh {
namespace {

// Returns a uniform number in [0, 1), with 53 random bits.
double uniform(uint64_t seed, uint64_t index) {
  const PhiloxBlock r =
      philox({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), 0, 0}, seed);
  return static_cast<double>((uint64_t{r[0]} << 32 | r[1]) >> 11) * 0x1p-53;
}

// Returns all candidates in their order, or the `count` likeliest, likeliest first.
std::vector<int32_t> candidates(std::span<const float> logits, size_t count, bool sorted) {
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  if (!sorted) return ids;
  const auto likelier = [&](int32_t a, int32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  };
  std::partial_sort(ids.begin(), ids.begin() + static_cast<int64_t>(count), ids.end(), likelier);
  ids.resize(count);
  return ids;
}

}  // namespace

void validate(const SamplingOptions& options) {
  require(options.temperature >= 0 && std::isfinite(options.temperature),
          with("--temperature", options.temperature) +
              " must not be negative; 0 takes the likeliest token");
  require(options.top_k >= 0, with("--top_k", options.top_k) + " must not be negative; 0: all");
  require(options.top_p >= 0 && options.top_p <= 1,
          with("--top_p", options.top_p) + " must be in [0, 1]; 0: all");
  require(options.temperature > 0 || (options.top_k == 0 && options.top_p == 0),
          "--temperature 0 takes the likeliest token, whatever --top_k and --top_p are; drop them");
}

int32_t Sampler::next(std::span<const float> logits) {
  if (logits.empty() ||
      !std::all_of(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); }))
    throw std::runtime_error("the logits are not finite: the checkpoint's weights are not");
  const auto likeliest = std::max_element(logits.begin(), logits.end());
  if (options_.temperature == 0) return static_cast<int32_t>(likeliest - logits.begin());

  const size_t count =
      options_.top_k > 0 ? std::min<size_t>(options_.top_k, logits.size()) : logits.size();
  std::vector<int32_t> ids = candidates(logits, count, options_.top_k > 0 || options_.top_p > 0);
  std::vector<double> weights(ids.size());
  std::transform(ids.begin(), ids.end(), weights.begin(), [&](int32_t id) {
    return std::exp((double{logits[id]} - *likeliest) / options_.temperature);
  });
  double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  if (options_.top_p > 0) {
    double kept = 0;
    size_t n = 0;
    while (n < weights.size() && kept < options_.top_p * sum) kept += weights[n++];
    weights.resize(n);
    sum = kept;
  }
  double left = uniform(options_.seed, drawn_++) * sum;
  size_t i = 0;
  while (i + 1 < weights.size() && left >= weights[i]) left -= weights[i++];
  return ids[i];
}

}  // namespace anymesh
