#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "framework/util/errors.h"

namespace anymesh {

// The element types of tensors in checkpoints. Torch's other types (quantized, packed bits) are
// read as objects (pickle.h).
enum class DType {
  kFloat64,
  kFloat32,
  kFloat16,
  kBFloat16,
  kFloat8E4M3fn,
  kFloat8E5M2,
  kFloat8E4M3fnuz,
  kFloat8E5M2fnuz,
  kFloat8E8M0fnu,
  kComplex128,
  kComplex64,
  kComplex32,
  kInt64,
  kInt32,
  kInt16,
  kInt8,
  kUInt64,
  kUInt32,
  kUInt16,
  kUInt8,
  kBool
};
uint64_t element_size(DType dtype);
bool is_floating(DType dtype);
bool is_complex(DType dtype);
std::string_view dtype_name(DType dtype);        // "float32"
std::string_view storage_class(DType dtype);     // "FloatStorage"; "" where torch has none
std::string_view safetensors_name(DType dtype);  // "F32"; "" where safetensors has none
std::optional<DType> dtype_of_name(std::string_view name);
std::optional<DType> dtype_of_storage_class(std::string_view name);
std::optional<DType> dtype_of_safetensors_name(std::string_view name);

using Shape = std::vector<int64_t>;
int64_t numel(std::span<const int64_t> shape);             // throws when negative or beyond 2^63
std::string to_string(std::span<const int64_t> shape);     // "[2, 3]"
Shape contiguous_strides(std::span<const int64_t> shape);  // row-major, as torch counts them

}  // namespace anymesh
