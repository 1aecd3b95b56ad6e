#pragma once

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "framework/format/torch_file.h"
#include "framework/util/input_file.h"
#include "tests/support/message_of.h"
#include "tests/support/temp_folder.h"

namespace anymesh {

// Returns a checkpoint of a real system, unpacked by ctest (tests/format/CMakeLists.txt).
inline fs::path fixture(const std::string& name) {
  const auto path = fs::path(ANYMESH_UNPACKED) / name;
  if (!fs::exists(path))
    throw std::runtime_error(path.string() + " is missing; run by ctest, which unpacks it");
  return path;
}

template <typename T>
BytesPtr bytes_of(const std::vector<T>& values) {
  const auto raw = std::as_bytes(std::span(values));
  return std::make_shared<OwnedBytes>(std::vector<std::byte>(raw.begin(), raw.end()));
}

inline TensorRecord float_tensor(Shape shape, const std::vector<float>& values) {
  return {DType::kFloat32, std::move(shape), false, bytes_of(values)};
}

inline std::vector<std::byte> read_bytes(const ByteSource& source) {
  std::vector<std::byte> bytes(source.size());
  source.read(0, bytes);
  return bytes;
}
inline std::vector<std::byte> read_bytes(const TensorRecord& tensor) {
  return read_bytes(*tensor.bytes);
}

inline std::vector<float> floats(const ByteSource& source) {
  std::vector<float> values(source.size() / sizeof(float));
  source.read(0, std::as_writable_bytes(std::span(values)));
  return values;
}
inline std::vector<float> floats(const TensorRecord& tensor) { return floats(*tensor.bytes); }

inline void write_file(const fs::path& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

// Writes records of these names and contents, laid out as in a torch file.
inline void write_zip(const fs::path& path,
                      const std::vector<std::pair<std::string, std::string>>& records) {
  ZipLayout zip;
  for (const auto& [name, text] : records) zip.add(name, text);
  write_file(path, zip.finish().pieces.front().text);  // texts alone are one piece
}

}  // namespace anymesh
