#pragma once

#include <torch/types.h>

#include <utility>
#include <vector>

namespace anymesh {

// The keys and values of one layer for the positions so far, keys already turned (positions.h), in
// memory for `capacity` positions that the first append() takes.
class KvCache {
 public:
  explicit KvCache(int64_t capacity) : capacity_(capacity) {}

  int64_t length() const { return length_; }
  void clear() { length_ = 0; }

  // Both [b, k, s, d], of the next s positions; returns all, [b, k, length, d], which the next
  // append() leaves as they are.
  std::pair<torch::Tensor, torch::Tensor> append(const torch::Tensor& keys,
                                                 const torch::Tensor& values) {
    TORCH_INTERNAL_ASSERT(length_ + keys.size(2) <= capacity_);
    if (length_ == 0) {
      const std::vector<int64_t> shape{keys.size(0), keys.size(1), capacity_, keys.size(3)};
      if (!keys_.defined() || keys_.sizes() != shape) {
        keys_ = torch::empty(shape, keys.options());
        values_ = torch::empty(shape, values.options());
      }
    }
    keys_.narrow(2, length_, keys.size(2)).copy_(keys);
    values_.narrow(2, length_, keys.size(2)).copy_(values);
    length_ += keys.size(2);
    return {keys_.narrow(2, 0, length_), values_.narrow(2, 0, length_)};
  }

 private:
  int64_t capacity_, length_ = 0;
  torch::Tensor keys_, values_;  // [b, k, capacity, d]
};

}  // namespace anymesh
