#include "framework/format/torch_file/dtype.h"

#include <algorithm>
#include <array>

#include "framework/util/errors.h"

namespace anymesh {
namespace {

struct DTypeInfo {
  DType dtype;
  uint64_t size;
  std::string_view name, storage, safetensors;
};

constexpr std::array kDTypes = {
    DTypeInfo{DType::kFloat64, 8, "float64", "DoubleStorage", "F64"},
    DTypeInfo{DType::kFloat32, 4, "float32", "FloatStorage", "F32"},
    DTypeInfo{DType::kFloat16, 2, "float16", "HalfStorage", "F16"},
    DTypeInfo{DType::kBFloat16, 2, "bfloat16", "BFloat16Storage", "BF16"},
    DTypeInfo{DType::kFloat8E4M3fn, 1, "float8_e4m3fn", "", "F8_E4M3"},
    DTypeInfo{DType::kFloat8E5M2, 1, "float8_e5m2", "", "F8_E5M2"},
    DTypeInfo{DType::kFloat8E4M3fnuz, 1, "float8_e4m3fnuz", "", "F8_E4M3FNUZ"},
    DTypeInfo{DType::kFloat8E5M2fnuz, 1, "float8_e5m2fnuz", "", "F8_E5M2FNUZ"},
    DTypeInfo{DType::kFloat8E8M0fnu, 1, "float8_e8m0fnu", "", "F8_E8M0"},
    DTypeInfo{DType::kComplex128, 16, "complex128", "ComplexDoubleStorage", ""},
    DTypeInfo{DType::kComplex64, 8, "complex64", "ComplexFloatStorage", "C64"},
    DTypeInfo{DType::kComplex32, 4, "complex32", "", ""},
    DTypeInfo{DType::kInt64, 8, "int64", "LongStorage", "I64"},
    DTypeInfo{DType::kInt32, 4, "int32", "IntStorage", "I32"},
    DTypeInfo{DType::kInt16, 2, "int16", "ShortStorage", "I16"},
    DTypeInfo{DType::kInt8, 1, "int8", "CharStorage", "I8"},
    DTypeInfo{DType::kUInt64, 8, "uint64", "", "U64"},
    DTypeInfo{DType::kUInt32, 4, "uint32", "", "U32"},
    DTypeInfo{DType::kUInt16, 2, "uint16", "", "U16"},
    DTypeInfo{DType::kUInt8, 1, "uint8", "ByteStorage", "U8"},
    DTypeInfo{DType::kBool, 1, "bool", "BoolStorage", "BOOL"},
};

constexpr const DTypeInfo& info(DType dtype) { return kDTypes[static_cast<size_t>(dtype)]; }

std::optional<DType> find(std::string_view DTypeInfo::*kind, std::string_view name) {
  const auto* found = std::ranges::find(kDTypes, name, kind);
  return found == kDTypes.end() ? std::nullopt : std::optional(found->dtype);
}

}  // namespace

uint64_t element_size(DType dtype) { return info(dtype).size; }
bool is_floating(DType dtype) { return dtype <= DType::kFloat8E8M0fnu; }
bool is_complex(DType dtype) { return dtype >= DType::kComplex128 && dtype <= DType::kComplex32; }
std::string_view dtype_name(DType dtype) { return info(dtype).name; }
std::string_view storage_class(DType dtype) { return info(dtype).storage; }
std::string_view safetensors_name(DType dtype) { return info(dtype).safetensors; }

std::optional<DType> dtype_of_name(std::string_view name) { return find(&DTypeInfo::name, name); }
std::optional<DType> dtype_of_storage_class(std::string_view name) {
  return find(&DTypeInfo::storage, name);
}
std::optional<DType> dtype_of_safetensors_name(std::string_view name) {
  return find(&DTypeInfo::safetensors, name);
}

int64_t numel(std::span<const int64_t> shape) {
  // Zeros are multiplied as ones, so that an empty tensor's strides cannot overflow either.
  int64_t product = 1;
  bool empty = false;
  for (const int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(product, std::max<int64_t>(size, 1), &product)) {
      throw DamagedFile("a tensor cannot have the shape " + to_string(shape));
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
