// Computes the samples that a data-parallel rank reads, by plain arithmetic on consumed_samples.
//
// A step reads samples [consumed, consumed + global_batch) in order; micro-batch m is the m-th run
// of dp_size * micro_batch_size of them, and each rank takes its slice of that run:
//
//   dp_size 2, micro_batch_size 2, consumed 8      rank 0      rank 1
//                             micro-batch 0        8  9       10 11
//                             micro-batch 1       12 13       14 15
//
// So the samples of a step do not depend on dp_size, and a run resumes on any mesh from one number.
#pragma once

#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "framework/data/dataset.h"

namespace anymesh {

struct BatchSlice {
  int64_t micro_batch_size = 1;
  int64_t dp_size = 1;
  int64_t dp_rank = 0;

  // Returns the sample in row `row` of micro-batch `micro_batch` on this rank.
  int64_t sample_index(int64_t consumed_samples, int64_t micro_batch, int64_t row) const {
    return consumed_samples + (micro_batch * dp_size + dp_rank) * micro_batch_size + row;
  }

  // Returns the samples of all rows.
  std::vector<int64_t> samples(int64_t consumed_samples, int64_t micro_batch) const {
    std::vector<int64_t> indices(static_cast<size_t>(micro_batch_size));
    std::iota(indices.begin(), indices.end(), sample_index(consumed_samples, micro_batch, 0));
    return indices;
  }
};

struct TokenBatch {
  std::vector<int64_t> tokens;  // [b, s]
  std::vector<int64_t> labels;  // [b, s], the tokens one position later
};

// Reads a micro-batch. Throws if the data set ends inside it.
inline TokenBatch load_micro_batch(const Dataset& data, std::span<const int64_t> samples) {
  const size_t s = static_cast<size_t>(data.seq_length());
  TokenBatch batch;
  batch.tokens.reserve(samples.size() * s);
  batch.labels.reserve(samples.size() * s);
  std::vector<int64_t> sample(s + 1);
  for (const int64_t index : samples) {
    data.sample(index, sample);
    batch.tokens.insert(batch.tokens.end(), sample.begin(), sample.end() - 1);
    batch.labels.insert(batch.labels.end(), sample.begin() + 1, sample.end());
  }
  return batch;
}

}  // namespace anymesh
