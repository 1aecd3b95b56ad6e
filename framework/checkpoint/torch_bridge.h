#pragma once

#include <torch/types.h>

#include "framework/comm/topology.h"
#include "framework/format/layout.h"
#include "framework/format/torch_file.h"
#include "framework/param_spec.h"
#include "framework/zero/offload/state_tensor.h"

namespace anymesh {

// Conversions between live tensors and the records of checkpoint files.

// Returns a record that reads the contiguous tensor's own memory as it is written, without a copy.
// It keeps the tensor alive. For a GPU tensor it reads the values as they are when the work queued
// before this call is done.
TensorRecord record_of(const torch::Tensor& t);
// The same for 1-D state in memory or on disk, and for pieces laid end to end. REQUIRES: all pieces
// have the same dtype.
TensorRecord record_of(const StateTensor& state);
TensorRecord record_of(const std::vector<StateTensor>& pieces, torch::Dtype dtype);

// Reads elements [begin, begin + out.numel()) of the record, converted to out's dtype. `name` is
// for the error message.
void read_elements(const TensorRecord& record, int64_t begin, torch::Tensor out,
                   const std::string& name);
void read_elements(const TensorRecord& record, int64_t begin, const StateTensor& out,
                   const std::string& name);

// Returns the layout of a rank's slice of a whole tensor, as tp and ep cut it.
ShardLayout layout_of(const ParamSpec& spec, const Topology& mesh, Coord at);
// Reads elements [begin, begin + out.numel()) of a slice of `whole`, flattened, into the 1-D `out`.
// `layout` is that slice's. Vocabulary padding is zero.
void read_slice(const TensorRecord& whole, const ShardLayout& layout, int64_t begin,
                torch::Tensor out, const std::string& name);

torch::Dtype torch_dtype(DType dtype);

}  // namespace anymesh
