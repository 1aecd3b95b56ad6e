#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "framework/checkpoint/format/byte_source.h"

namespace anymesh {

// What a file will hold, before any tensor is read: texts, which are known, and tensors, end to
// end.
//
//   prefix "PK.. data.pkl ..", tensor of 1.5 MB, suffix "PK.. directory"
struct FileLayout {
  struct Piece {
    uint64_t offset = 0;
    std::string text;
    BytesPtr source;  // in place of a text
    uint64_t size() const { return source ? source->size() : text.size(); }
  };

  std::vector<Piece> pieces;
  uint64_t size = 0;

  void add(std::string_view text);  // joins the text before it
  void add(BytesPtr source);
};

// A file to be streamed. Texts may depend on the CRC-32 of the tensors, but their sizes must not:
// `layout` is called with zeros before the tensors are read, and with their CRCs, in order, after.
struct StreamedFile {
  std::filesystem::path path;
  std::function<FileLayout(std::span<const uint32_t> crcs)> layout;
};

struct StreamResult {
  uint64_t bytes = 0;          // of all files
  uint64_t kept = 0;           // of these, what was in files that were there
  std::vector<uint32_t> crcs;  // CRC-32 of each file
};

// As many threads as this machine and 64 MiB of memory have room for: more than cores, as most wait
// for the disk. On two cores, of 4.3 GB from two ranks at ZeRO 3, 12 threads needed 1.88 s and
// 53 MiB at the peak, 8 of them 2.03 s and 40, 16 as long as 12 and 65.
inline int stream_threads() {
  return std::clamp(int(std::thread::hardware_concurrency()), 1, 2) * 6;
}
// Of each of the ranks that save, whose memory is the training's: 8 would be 5 % faster.
inline constexpr int kSaveThreads = 4;

// Writes all files, each byte once at its final offset. The files are cut into blocks of 2 MiB,
// which `threads` work through in order, so that no thread waits for another's large file, and
// memory is a block or two a thread whatever the sizes. A tensor's CRC is put together from those
// of its blocks. Over files that are there it writes only what differs (PlacedFile). Does not sync.
StreamResult stream_files(const std::vector<StreamedFile>& files, int threads);

}  // namespace anymesh
