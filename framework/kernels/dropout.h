#pragma once

#include <torch/types.h>

#include <cstdint>
#include <vector>

namespace anymesh {

// Determines a micro-batch's dropout masks: the run's seed and the samples' numbers in the global
// order of the data. An empty `samples` means evaluation, without dropout.
struct DropoutContext {
  uint64_t seed = 0;
  std::vector<int64_t> samples;  // [b]
};

// Selects a mask of the model: its layer, and one of the layer's dropouts. The last four are before
// adapters of the layer's matrices; their streams lie behind all others.
enum class DropoutSite : uint32_t {
  Embedding,
  Attention,
  AttentionOutput,
  MlpOutput,
  QueryKeyValueAdapter = 1u << 23,
  DenseAdapter,
  DenseHTo4hAdapter,
  Dense4hToHAdapter
};
struct DropoutStream {
  uint32_t layer = 0;
  DropoutSite site = DropoutSite::Embedding;
};

// Zeroes each element of x [b, ...] with probability p and scales the others by 1 / (1 - p).
//
// Element i of a sample's slice of x is element `first + i` of that sample's whole tensor. Its mask
// depends only on (seed, sample, layer, site, first + i), so a rank that holds heads 4..7 of 16
// passes their offset and draws the same mask as a single process. Only the key is stored for
// backward, which draws the mask again.
torch::Tensor dropout(const torch::Tensor& x, double p, const DropoutContext& context,
                      DropoutStream stream, int64_t first = 0);

// Writes the factors, 0 or 1 / (1 - p), of elements [first, first + n) of row `row` of the batch.
// For kernels that drop as they go.
void dropout_factors(float* factors, int64_t n, int64_t first, double p,
                     const DropoutContext& context, DropoutStream stream, int64_t row);

}  // namespace anymesh
