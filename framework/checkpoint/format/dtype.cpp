#include "framework/checkpoint/format/dtype.h"

#include <algorithm>
#include <array>

namespace anymesh {
namespace {

struct DTypeInfo {
  DType dtype;
  uint64_t size;
  std::string_view name, storage;
};

constexpr std::array kDTypes = {
    DTypeInfo{DType::kFloat64, 8, "float64", "DoubleStorage"},
    DTypeInfo{DType::kFloat32, 4, "float32", "FloatStorage"},
    DTypeInfo{DType::kFloat16, 2, "float16", "HalfStorage"},
    DTypeInfo{DType::kBFloat16, 2, "bfloat16", "BFloat16Storage"},
    DTypeInfo{DType::kInt64, 8, "int64", "LongStorage"},
    DTypeInfo{DType::kInt32, 4, "int32", "IntStorage"},
    DTypeInfo{DType::kInt16, 2, "int16", "ShortStorage"},
    DTypeInfo{DType::kInt8, 1, "int8", "CharStorage"},
    DTypeInfo{DType::kUInt8, 1, "uint8", "ByteStorage"},
    DTypeInfo{DType::kBool, 1, "bool", "BoolStorage"},
};

constexpr const DTypeInfo& info(DType dtype) { return kDTypes[static_cast<size_t>(dtype)]; }

}  // namespace

uint64_t element_size(DType dtype) { return info(dtype).size; }
bool is_floating(DType dtype) { return dtype <= DType::kBFloat16; }
std::string_view dtype_name(DType dtype) { return info(dtype).name; }
std::string_view storage_class(DType dtype) { return info(dtype).storage; }

std::optional<DType> dtype_of_name(std::string_view name) {
  for (const DTypeInfo& candidate : kDTypes) {
    if (candidate.name == name) return candidate.dtype;
  }
  return std::nullopt;
}

std::optional<DType> dtype_of_storage_class(std::string_view name) {
  for (const DTypeInfo& candidate : kDTypes) {
    if (candidate.storage == name) return candidate.dtype;
  }
  return std::nullopt;
}

int64_t numel(std::span<const int64_t> shape) {
  // Multiplied as if zeros were ones, so that the strides of an empty tensor cannot overflow
  // either.
  int64_t product = 1;
  bool empty = false;
  for (const int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(product, std::max<int64_t>(size, 1), &product)) {
      throw ValueError("a tensor cannot have the shape " + to_string(shape));
    }
    empty |= size == 0;
  }
  return empty ? 0 : product;
}

Shape contiguous_strides(std::span<const int64_t> shape) {
  Shape strides(shape.size());
  int64_t step = 1;
  for (size_t dim = shape.size(); dim-- > 0;) {
    strides[dim] = step;
    step *= std::max<int64_t>(shape[dim], 1);  // an empty dim counts as one
  }
  return strides;
}

std::string to_string(std::span<const int64_t> shape) {
  std::string text = "[";
  for (const int64_t size : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + "]";
}

}  // namespace anymesh
