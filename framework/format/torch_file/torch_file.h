#pragma once

#include <cstdint>
#include <filesystem>

#include "framework/format/io/write_files.h"
#include "framework/format/torch_file/value.h"
#include "framework/format/torch_file/zip.h"

namespace anymesh {

// Files of torch.save and torch.load: zip archives of data.pkl (a pickle) and data/0, data/1, ...
// (the storages).
//
//   Value state = read_torch_file("mp_rank_00_model_states.pt");
//   state.at("module").at("h.0.ln_1.weight").as_tensor();       // its bytes are still in the file
//   write_torch_file("fp32.pt", Value::dict({{"param", tensor}}));
//
// Reads only the metadata, with at most twice the file's size plus 64 MiB of memory. A tensor is
// read when its ByteSource is, and only after its whole storage has passed its CRC (zip.h). With
// `checks` the CRC check is deferred, and the caller finishes it. A strided view reads as a
// contiguous tensor. Throws for the legacy format from before torch 1.6, and for a compressed
// archive, and says so.
Value read_torch_file(const std::filesystem::path& path, RecordChecksums* checks = nullptr);

// The same in two steps, for a caller that needs the archive too.
ZipReader open_torch_file(const std::filesystem::path& path);
Value read_torch_file(const ZipReader& zip, RecordChecksums* checks = nullptr);
// Returns the object part. Files with the same one differ in their tensors' elements alone.
std::vector<std::byte> read_pickle(const ZipReader& zip);

// Writes the tensors in blocks from `threads` threads (write_files.h). Each tensor gets a storage
// of exactly its own bytes (a view does not drag its storage along), but tensors with the same
// `bytes` pointer share one. Overwrites. Does not fsync: see file_io.h. One thread reads tensors
// one after the other.
WriteResult write_torch_file(const std::filesystem::path& path, const Value& value,
                             int threads = kSaveThreads);

// Returns the same file for write_files(). Its layout depends on the path, because the file
// contains its name.
StreamedFile streamed_torch_file(const std::filesystem::path& path, const Value& value);

}  // namespace anymesh
