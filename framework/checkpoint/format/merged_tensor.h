#pragma once

#include <string>
#include <vector>

#include "framework/checkpoint/format/shard_layout.h"
#include "framework/checkpoint/format/source_checkpoint.h"

namespace anymesh {

// Tensors that are computed while they are written: each read() of a range fetches only the source
// bytes behind it, so a full tensor is never in memory. Ranges must be of whole elements.

// A full tensor out of the shards of tensor parallelism, each out of the fragments of its dp ranks.
class MergedTensor : public ByteSource {
 public:
  struct Part {
    ShardLayout layout;
    std::vector<SourceFragment> fragments;  // ascending, covering the shard
  };
  MergedTensor(std::vector<Part> parts, DType dtype);
  uint64_t size() const override { return size_; }
  void read(uint64_t offset, std::span<std::byte> out) const override;

 private:
  void read_fragment(const Part& part, const SourceFragment& fragment, int64_t begin, int64_t end,
                     int64_t full_begin, std::span<std::byte> out) const;

  std::vector<Part> parts_;
  uint64_t element_size_, size_;
};

// Fragments in a row: a shard of this shape, or a tensor that only dp cuts.
BytesPtr joined(const Shape& shape, std::vector<SourceFragment> fragments, DType dtype);

// The differences of two tensors of as many elements, found a few MiB at a time: bit by bit where
// they are of one dtype, else by value.
struct TensorDifference {
  int64_t count = 0;   // of elements
  int64_t where = 0;   // the one that differs most
  double largest = 0;  // NaN where one of the two is
  int64_t numel = 0;
  std::string text() const;  // "differs in 1 of 64 elements, at most by 5.000e-01 at element 3"
};
bool is_comparable(DType a, DType b);  // of one dtype, or doubles hold all values of both
TensorDifference compare_tensors(const TensorRecord& a, const TensorRecord& b);

// A tensor that all `ranks` hold ("tp ranks"): the first's, compared bit by bit with the others' as
// it is read. A difference throws, naming the parameter and the largest one.
BytesPtr replicated(const std::string& name, const std::vector<BytesPtr>& replicas, DType dtype,
                    const std::string& ranks);

// The arithmetic mean of float32 tensors.
BytesPtr averaged(const std::vector<BytesPtr>& replicas);

// A tensor as float32, without requires_grad. Complex numbers are refused.
TensorRecord as_float32(const TensorRecord& tensor);

// One of half precision as float32, which holds it exactly; any other as it is. Without
// requires_grad.
TensorRecord widened(const TensorRecord& tensor);

}  // namespace anymesh
