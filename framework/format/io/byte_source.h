#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "framework/util/input_file.h"  // Unreadable

namespace anymesh {

// Where bytes lie in a file.
struct FileRange {
  std::filesystem::path file;
  std::string record;  // in an archive: the record that has them
  uint64_t offset = 0, size = 0;
  std::string dtype;  // of elements that are converted as they are read; else empty
};

// Bytes that can be read at any offset: a range of a file, a buffer in memory, or bytes computed as
// they are read. A checkpoint's tensor is dtype + shape + ByteSource. Files are therefore written
// from live buffers, or merged from other files, without a copy of the whole.
//
// Reading is const and safe from several threads. read() throws std::runtime_error when it cannot
// fill `out`.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual uint64_t size() const = 0;
  virtual void read(uint64_t offset, std::span<std::byte> out) const = 0;
  // Returns where bytes [offset, offset + count) lie, in order. Empty if they are in memory, or
  // computed from several places.
  virtual std::vector<FileRange> places(uint64_t offset, uint64_t count) const;

 protected:
  // Throws unless [offset, offset + count) lies inside. `what` names the source in the message.
  void check_range(uint64_t offset, uint64_t count, const std::string& what) const;
};

using BytesPtr = std::shared_ptr<const ByteSource>;

// A file opened for reading.
class File : public ByteSource {
 public:
  explicit File(const std::filesystem::path& path);
  // Bytes [offset, offset + size) of an open file, as a file of their own.
  File(std::shared_ptr<const File> whole, uint64_t offset, uint64_t size);
  ~File() override;
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  const std::filesystem::path& path() const { return path_; }
  uint64_t size() const override { return size_; }
  void read(uint64_t offset, std::span<std::byte> out) const override;  // pread
  std::vector<FileRange> places(uint64_t offset, uint64_t count) const override;
  uint32_t crc(uint64_t offset, uint64_t size) const;  // CRC-32 of a range, read a MiB at a time
  uint64_t begin() const { return begin_; }            // of a part of a file: its offset

 private:
  std::filesystem::path path_;
  std::shared_ptr<const File> whole_;  // null, or has the descriptor
  int descriptor_;
  uint64_t begin_ = 0, size_;
};

// Owns its buffer. For small data.
class OwnedBytes : public ByteSource {
 public:
  explicit OwnedBytes(std::vector<std::byte> bytes) : bytes_(std::move(bytes)) {}
  uint64_t size() const override { return bytes_.size(); }
  void read(uint64_t offset, std::span<std::byte> out) const override;

 private:
  std::vector<std::byte> bytes_;
};

// Bytes [offset, offset + size) of another source.
class SubRange : public ByteSource {
 public:
  SubRange(BytesPtr whole, uint64_t offset, uint64_t size);
  uint64_t size() const override { return size_; }
  void read(uint64_t offset, std::span<std::byte> out) const override;
  std::vector<FileRange> places(uint64_t offset, uint64_t count) const override;

 private:
  BytesPtr whole_;
  uint64_t offset_, size_;
};

// A strided view of a storage, read as if it were contiguous. Offset and strides are in elements.
class StridedView : public ByteSource {
 public:
  StridedView(BytesPtr storage, uint64_t element_size, uint64_t offset, std::vector<int64_t> shape,
              std::vector<int64_t> strides);
  uint64_t size() const override { return size_; }
  void read(uint64_t offset, std::span<std::byte> out) const override;
  std::vector<FileRange> places(uint64_t offset, uint64_t count) const override;

 private:
  uint64_t element_position(uint64_t index) const;  // row-major index -> storage position

  BytesPtr storage_;
  uint64_t element_size_, offset_, size_;
  std::vector<int64_t> shape_, strides_;
};

// Bytes that `read` computes. `what` names them in messages.
class ComputedBytes : public ByteSource {
 public:
  using Read = std::function<void(uint64_t offset, std::span<std::byte> out)>;
  ComputedBytes(uint64_t size, std::string what, Read read)
      : size_(size), what_(std::move(what)), read_(std::move(read)) {}
  uint64_t size() const override { return size_; }
  void read(uint64_t offset, std::span<std::byte> out) const override {
    check_range(offset, out.size(), what_);
    read_(offset, out);
  }

 private:
  uint64_t size_;
  std::string what_;
  Read read_;
};

}  // namespace anymesh
