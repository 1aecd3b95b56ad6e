#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace anymesh {

// Bytes in order, piece by piece. Nothing seeks, so a pipe is as good as a file.
//
//   while (!(piece = stream.next()).empty()) ...
class ByteStream {
 public:
  ByteStream() = default;
  ByteStream(const ByteStream&) = delete;
  ByteStream& operator=(const ByteStream&) = delete;
  virtual ~ByteStream() = default;

  // Returns the next bytes, which are valid until the next call; none at the end.
  std::string_view next() {
    if (ahead_.empty()) return read();
    piece_ = std::exchange(ahead_, {});
    return piece_;
  }

  // Returns the next `count` bytes, or fewer at the end. next() returns them again.
  std::string_view peek(size_t count) {
    while (ahead_.size() < count) {
      const std::string_view piece = read();
      if (piece.empty()) break;
      ahead_ += piece;
    }
    return std::string_view(ahead_).substr(0, count);
  }

  // Returns how many bytes of the file on disk were read.
  virtual int64_t file_bytes() const = 0;

 private:
  virtual std::string_view read() = 0;  // as next()

  std::string ahead_, piece_;
};

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

// Unpacks gzip: one member or several, which are joined, and zeros behind a member. Throws
// DamagedFile, with the offset in the file, if the file is cut off or its bytes are damaged. Memory
// does not depend on the size.
std::unique_ptr<ByteStream> unpack_gzip(std::unique_ptr<FileStream> file);

// Unpacks zstd likewise: one frame or several, and skippable frames. Memory depends on the window
// of `zstd --long=N`, 2^N bytes: N may be up to 31.
std::unique_ptr<ByteStream> unpack_zstd(std::unique_ptr<FileStream> file);

}  // namespace anymesh
