#pragma once

#include <zlib.h>

#include <memory>
#include <string>
#include <vector>

#include "framework/data/inputs/file_stream.h"

namespace anymesh {

// Unpacks gzip: one member or several, which are joined, and zeros behind a member. Throws
// DamagedFile, with the offset in the file, if the file is cut off or its bytes are damaged. Memory
// does not depend on the size.
class GzipStream : public ByteStream {
 public:
  explicit GzipStream(std::unique_ptr<FileStream> file);
  ~GzipStream() override;

  int64_t file_bytes() const override { return file_->file_bytes(); }

 private:
  std::string_view read() override;
  bool refill();
  bool begin_member();

  std::unique_ptr<FileStream> file_;
  std::vector<char> buffer_;
  z_stream state_{};
  bool inside_ = false;  // a member
  bool more_ = false;    // output may be held back that found no room
};

}  // namespace anymesh
