#pragma once

#include <torch/types.h>

#include "framework/checkpoint/format/value.h"

namespace anymesh {

// Between live tensors and the records of checkpoint files.

// A record that reads the contiguous tensor's own memory as it is written: no copy. It keeps the
// tensor alive.
TensorRecord record_of(const torch::Tensor& t);
// A record of 1-D tensors laid end to end. REQUIRES: contiguous, of one dtype.
TensorRecord record_of(const std::vector<torch::Tensor>& pieces, torch::Dtype dtype);

// Elements [begin, begin + out.numel()) of the record, converted to out's dtype. `name` is for the
// error message.
void read_elements(const TensorRecord& record, int64_t begin, torch::Tensor out,
                   const std::string& name);

torch::Dtype torch_dtype(DType dtype);

}  // namespace anymesh
