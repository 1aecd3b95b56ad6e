#include "framework/run/sample_source.h"

#include <ATen/Functions.h>

#include "framework/data/batch_loader.h"

namespace anymesh {

torch::Tensor to_tensor(std::span<const int64_t> numbers) {
  return torch::tensor(at::IntArrayRef(numbers.data(), numbers.size()), torch::kLong);
}

MicroBatch TokenSource::batch(std::span<const int64_t> samples) const {
  const TokenBatch read = load_micro_batch(*data_, samples);
  const int64_t s = data_->seq_length();
  for (const std::vector<int64_t>* row : {&read.tokens, &read.labels})
    for (size_t i = 0; i < row->size(); ++i)
      if (const int64_t token = (*row)[i]; token < 0 || token >= vocab_size_)
        throw_error("sample ", samples[i / static_cast<size_t>(s)], " has token ", token,
                    ", the vocabulary has ", vocab_size_, advice_);
  return {.inputs = to_tensor(read.tokens).view({-1, s}),   // [b, s]
          .labels = to_tensor(read.labels).view({-1, s})};  // [b, s]
}

}  // namespace anymesh
