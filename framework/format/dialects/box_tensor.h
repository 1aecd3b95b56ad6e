#pragma once

#include <string>
#include <vector>

#include "framework/format/torch_file/value.h"

namespace anymesh {

// A part of a tensor: a box of this shape at these offsets, row-major in `bytes`.
struct TensorBox {
  Shape offsets, shape;
  BytesPtr bytes;
};

// A tensor made of boxes, which each have the elements of one rank, as they are read. Throws
// DamagedFile, naming the tensor, unless the boxes cover each element of `shape` once. Ranges that
// are read must consist of whole elements.
TensorRecord tensor_of_boxes(const std::string& name, DType dtype, const Shape& shape,
                             std::vector<TensorBox> boxes);

}  // namespace anymesh
