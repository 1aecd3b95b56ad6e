#pragma once

#include <torch/types.h>

namespace anymesh {

// Frees and allocates the memory under a tensor and all of its aliases, while these stay. Layers
// and autograd keep their tensors, and ZeRO stage 3 decides when they have memory.

inline void release_storage(const torch::Tensor& t) { t.storage().unsafeGetStorageImpl()->reset(); }

inline void allocate_storage(const torch::Tensor& t) {
  c10::StorageImpl* storage = t.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(c10::GetAllocator(t.device().type())->allocate(t.nbytes()));
  storage->set_nbytes(t.nbytes());
}

// A contiguous tensor without memory.
inline torch::Tensor empty_without_storage(const std::vector<int64_t>& shape,
                                           const torch::TensorOptions& options) {
  torch::Tensor t = torch::empty({0}, options);
  t.unsafeGetTensorImpl()->set_sizes_contiguous(shape);
  return t;
}

}  // namespace anymesh
