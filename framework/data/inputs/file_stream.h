#pragma once

#include <string>
#include <vector>

#include "framework/data/inputs/byte_stream.h"

namespace anymesh {

// Returns what messages call an input: its path, or "standard input" for "-".
inline std::string input_name(const std::string& path) {
  return path == "-" ? "standard input" : path;
}

// A file or a pipe. The path "-" is standard input, from where it stands. Opening a FIFO waits for
// its writer.
class FileStream : public ByteStream {
 public:
  explicit FileStream(const std::string& path);
  ~FileStream() override;

  const std::string& name() const { return name_; }
  int64_t file_bytes() const override { return file_bytes_; }

 private:
  std::string_view read() override;

  std::string name_;
  int descriptor_;
  int64_t file_bytes_ = 0;
  std::vector<char> buffer_;
};

}  // namespace anymesh
