#pragma once

#include <zstd.h>

#include <memory>
#include <string>
#include <vector>

#include "framework/data/inputs/file_stream.h"

namespace anymesh {

// Unpacks zstd: one frame or several, which are joined, and skippable frames. Throws DamagedFile,
// with the offset in the file, if the file is cut off or its bytes are damaged. Memory does not
// depend on the size, but on the window of `zstd --long=N`, 2^N bytes: N may be up to 31.
class ZstdStream : public ByteStream {
 public:
  explicit ZstdStream(std::unique_ptr<FileStream> file);

  int64_t file_bytes() const override { return file_->file_bytes(); }

 private:
  std::string_view read() override;

  std::unique_ptr<FileStream> file_;
  std::vector<char> buffer_;
  std::unique_ptr<ZSTD_DCtx, size_t (*)(ZSTD_DCtx*)> state_;
  ZSTD_inBuffer in_{};
  bool inside_ = false;  // a frame
  bool more_ = false;    // output may be held back that found no room
};

}  // namespace anymesh
