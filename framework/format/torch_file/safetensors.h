#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "framework/format/io/write_files.h"
#include "framework/format/torch_file/value.h"

namespace anymesh {

// Files of Hugging Face's safetensors (github.com/huggingface/safetensors). They hold the length of
// a JSON header in 8 bytes, the header {name: {dtype, shape, data_offsets}}, and the tensors end to
// end.
//
//   write_safetensors("model.safetensors", {{"lm_head.weight", tensor}});
//   for (const auto& [name, tensor] : read_safetensors("model.safetensors")) ...
//
// Tensors can't share memory there, so a tied weight is written under each of its names. Reads only
// the header. Throws, with file and name, for a header past the end of the file, for offsets that
// overlap, leave a gap or don't fit the shape, and for dtypes that a checkpoint here can't have.
NamedTensors read_safetensors(const std::filesystem::path& path);
StreamedFile streamed_safetensors(const std::filesystem::path& path, const NamedTensors& tensors);
// Returns the file's size. Overwrites; does not sync.
uint64_t write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors);

}  // namespace anymesh
