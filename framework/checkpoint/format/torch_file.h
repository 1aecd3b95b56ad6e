#pragma once

#include <cstdint>
#include <filesystem>

#include "framework/checkpoint/format/stream_files.h"
#include "framework/checkpoint/format/value.h"

namespace anymesh {

class DeferredChecks;

// Files of torch.save and torch.load: a zip archive of data.pkl (a pickle) and data/0, data/1, ...
// (the storages).
//
//   Value state = read_torch_file("mp_rank_00_model_states.pt");
//   state.at("module").at("h.0.ln_1.weight").as_tensor();       // its bytes are still in the file
//   write_torch_file("fp32.pt", Value::dict({{"param", tensor}}));
//
// Reading takes the metadata only, in at most twice the file's size plus 64 MiB of memory; tensors
// are read when their ByteSource is, and nothing of a storage before all of it has met its CRC
// (zip.h), unless `checks` are given, which are the caller's to finish. A strided view reads as a
// contiguous tensor. The legacy format from before torch 1.6 is refused by name, as is a compressed
// archive.
Value read_torch_file(const std::filesystem::path& path, DeferredChecks* checks = nullptr);

// Writes the tensors in blocks, from `threads` threads (stream_files.h), each to a storage of
// exactly its own bytes (a view does not drag its storage along); tensors with the same `bytes`
// pointer share one storage. Overwrites. Does not fsync: see file_io.h. One thread reads tensors
// one after the other.
StreamResult write_torch_file(const std::filesystem::path& path, const Value& value,
                              int threads = kSaveThreads);

// The same file for stream_files.
StreamedFile streamed_torch_file(const std::filesystem::path& path, const Value& value);

// The size of the file before it is written. Its own name is in it, hence `path`.
uint64_t torch_file_size(const std::filesystem::path& path, const Value& value);

}  // namespace anymesh
