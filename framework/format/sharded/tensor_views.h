#pragma once

#include <string>
#include <vector>

#include "framework/format/layout/shard_layout.h"
#include "framework/format/sharded/sharded_checkpoint.h"

namespace anymesh {

// Tensors that are computed while they are written. Each read() fetches only the source bytes
// behind its range, so a full tensor is never in memory. Ranges must consist of whole elements.

// A full tensor merged from its tensor-parallel shards. Each shard consists of the fragments of its
// dp ranks.
class MergedTensor : public ByteSource {
 public:
  struct Part {
    ShardLayout layout;      // its pieces ascend in the full tensor
    FragmentsPtr fragments;  // ascending, covering the shard
    bool is_copy = false;    // parts before it have the same elements
  };
  // `what` names the tensor if a copy differs, for which read() throws DamagedFile.
  MergedTensor(std::vector<Part> parts, DType dtype, std::string what = "");
  uint64_t size() const override { return size_; }
  void read(uint64_t offset, std::span<std::byte> out) const override;

 private:
  void read_part(const Part& part, int64_t begin, int64_t end, std::span<std::byte> out) const;
  void read_fragment(const Part& part, const ShardFragment& fragment, int64_t begin, int64_t end,
                     int64_t full_begin, std::span<std::byte> out) const;

  std::vector<Part> parts_;
  uint64_t element_size_, size_;
  std::string what_;
};

// Adds a part for each piece that an affine map gives a shard of the parameter `name`. Its scale is
// divided out, as its power in this state. Throws Unreadable if the elements are not float32.
void append_pieces(std::vector<MergedTensor::Part>& parts, const ShardLayout& layout,
                   const std::string& name, const std::string& state, const FragmentsPtr& fragments,
                   DType dtype);

// Joins consecutive fragments into a tensor of this shape: a shard, or a tensor that only dp cuts.
BytesPtr joined(const Shape& shape, std::vector<ShardFragment> fragments, DType dtype);
// Returns a fragment's elements as a flat tensor.
TensorRecord tensor_of(const ShardFragment& fragment, DType dtype);

// Returns as many zero bytes, for padding.
BytesPtr zeros(uint64_t size);

// The differences between two tensors with the same number of elements. The tensors are compared a
// few MiB at a time: bit by bit if they have one dtype, else by value.
struct TensorDifference {
  int64_t count = 0;   // elements that differ
  int64_t where = 0;   // the element that differs most
  double largest = 0;  // its difference; NaN if either value is NaN
  int64_t numel = 0;
  std::string text() const;  // "differs in 1 of 64 elements, at most by 5.000e-01 at element 3"
};
bool is_comparable(DType a, DType b);  // the same dtype, or doubles hold all values of both
TensorDifference compare_tensors(const TensorRecord& a, const TensorRecord& b);

// Returns the tensor that all `ranks` hold ("tp ranks"): the first replica, compared bit by bit
// with the others as it is read. Reading throws DamagedFile on a difference, naming the parameter
// and the largest difference.
BytesPtr replicated(const std::string& name, const std::vector<BytesPtr>& replicas, DType dtype,
                    const std::string& ranks);

// Returns the arithmetic mean of float32 tensors.
BytesPtr averaged(const std::vector<BytesPtr>& replicas);

// Rounds a tensor to float32, float16 or bfloat16, without requires_grad. Throws Unreadable on
// complex numbers.
TensorRecord as_dtype(const TensorRecord& tensor, DType dtype);
TensorRecord as_float32(const TensorRecord& tensor);

// Converts a tensor of half precision to float32, which holds it exactly. Keeps any other dtype.
// Clears requires_grad.
TensorRecord widened(const TensorRecord& tensor);
// Returns the tensor that as_dtype() or widened() converts, or another tensor as it is.
TensorRecord as_stored(const TensorRecord& tensor);

// Converts a tensor to float32, or rounds it to float16 or bfloat16, to nearest even.
TensorRecord rounded(const TensorRecord& tensor, DType dtype);

}  // namespace anymesh
