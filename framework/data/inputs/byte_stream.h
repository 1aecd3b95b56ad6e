#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

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

}  // namespace anymesh
