#pragma once

#include <torch/types.h>

#include "framework/checkpoint/format/value.h"
#include "framework/offload/state_tensor.h"

namespace anymesh {

// Between live tensors and the records of checkpoint files.

// A record that reads the contiguous tensor's own memory as it is written: no copy. It keeps the
// tensor alive. Of a GPU's it reads what is there when the work before this call is done.
TensorRecord record_of(const torch::Tensor& t);
// The same of state in memory or on disk, 1-D; and of pieces laid end to end. REQUIRES: of one
// dtype.
TensorRecord record_of(const StateTensor& state);
TensorRecord record_of(const std::vector<StateTensor>& pieces, torch::Dtype dtype);

// Elements [begin, begin + out.numel()) of the record, converted to out's dtype. `name` is for the
// error message.
void read_elements(const TensorRecord& record, int64_t begin, torch::Tensor out,
                   const std::string& name);
void read_elements(const TensorRecord& record, int64_t begin, const StateTensor& out,
                   const std::string& name);

torch::Dtype torch_dtype(DType dtype);

}  // namespace anymesh
