#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "framework/format/io/byte_source.h"
#include "framework/format/io/progress.h"

namespace anymesh {

// The layout of a file before any tensor is read: texts, which are known, and tensors, end to end.
//
//   prefix "PK.. data.pkl ..", tensor of 1.5 MB, suffix "PK.. directory"
struct FileLayout {
  struct Piece {
    uint64_t offset = 0;
    std::string text;
    BytesPtr source;  // instead of a text
    uint64_t size() const { return source ? source->size() : text.size(); }
  };

  std::vector<Piece> pieces;
  uint64_t size = 0;

  void add(std::string_view text);  // joins the text before it
  void add(BytesPtr source);
};

// A file to be streamed, laid out. Texts may depend on the tensors' CRC-32, but their sizes must
// not.
struct StreamedFile {
  std::filesystem::path path;
  FileLayout layout;  // with zeros in place of CRCs
  // Lays the file out again with the tensors' CRCs, in order. Null if no text depends on them.
  std::function<FileLayout(std::span<const uint32_t> crcs)> with_crcs = nullptr;
};

struct WriteResult {
  uint64_t bytes = 0;          // of all files
  uint64_t kept = 0;           // of these, bytes that files already held
  std::vector<uint32_t> crcs;  // CRC-32 of each file
};

// The number of threads that this machine and 64 MiB of memory have room for. It exceeds the number
// of cores, as most threads wait for the disk. For 4.3 GB from two ranks at ZeRO 3 on two cores, 12
// threads took 1.88 s and 53 MiB at the peak, 8 took 2.03 s and 40 MiB, and 16 took as long as 12
// and 65 MiB.
inline int write_threads() {
  return std::clamp(int(std::thread::hardware_concurrency()), 1, 2) * 6;
}
// The number of threads on each rank that saves. 8 would be 5 % faster, but training uses the
// memory.
inline constexpr int kSaveThreads = 4;

// Writes all files, each byte once at its final offset. `threads` threads work through the files in
// blocks of 2 MiB, in order. No thread waits for another's large file, and memory is a block or two
// per thread for any sizes. A tensor's CRC is combined from its blocks' CRCs. In files that exist,
// only bytes that differ are written (DirectFile). Does not sync.
WriteResult write_files(const std::vector<StreamedFile>& files, int threads,
                        const ProgressCallback& progress = nullptr);

}  // namespace anymesh
