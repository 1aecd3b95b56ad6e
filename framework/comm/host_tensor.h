// Access to the bytes of a tensor, for the communicators between CPUs.
#pragma once

#include <torch/types.h>

#include <cstddef>

namespace anymesh {

inline void check_contiguous(const torch::Tensor& t, const char* verb) {
  TORCH_INTERNAL_ASSERT(!t.defined() || (t.is_contiguous() && t.device().is_cpu()), verb,
                        " needs a contiguous CPU tensor");
}

inline std::byte* bytes_at(const torch::Tensor& t, int64_t element = 0) {
  return static_cast<std::byte*>(t.data_ptr()) + element * t.element_size();
}

}  // namespace anymesh
