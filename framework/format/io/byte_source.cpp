#include "framework/format/io/byte_source.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "framework/format/io/crc32.h"
#include "framework/util/errors.h"

namespace anymesh {
namespace {

// An expanded view (stride 0) may be larger than its storage, but must not fill a disk.
constexpr uint64_t kMaxExpanded = 1 << 30;
constexpr uint64_t kSmallStorage = 1 << 20;

}  // namespace

void ByteSource::check_range(uint64_t offset, uint64_t count, const std::string& what) const {
  if (offset > size() || count > size() - offset) {
    throw DamagedFile(what + ": reading " + std::to_string(count) + " bytes at " +
                      std::to_string(offset) + ", but it has " + std::to_string(size()));
  }
}

std::vector<FileRange> ByteSource::places(uint64_t, uint64_t) const { return {}; }

File::File(const std::filesystem::path& path) : path_(path), descriptor_(open_to_read(path)) {
  struct stat status {};
  fstat(descriptor_, &status);
  size_ = static_cast<uint64_t>(status.st_size);
}

File::File(std::shared_ptr<const File> whole, uint64_t offset, uint64_t size)
    : path_(whole->path_),
      whole_(std::move(whole)),
      descriptor_(whole_->descriptor_),
      begin_(whole_->begin_ + offset),
      size_(size) {
  whole_->check_range(offset, size, path_.string());
}

File::~File() {
  if (!whole_) close(descriptor_);
}

void File::read(uint64_t offset, std::span<std::byte> out) const {
  if (whole_) check_range(offset, out.size(), path_.string());
  offset += begin_;
  while (!out.empty()) {
    const ssize_t n = pread(descriptor_, out.data(), out.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      throw DamagedFile("cannot read " + std::to_string(out.size()) + " bytes at " +
                        std::to_string(offset) + " of " + path_.string() + ": " +
                        (n < 0 ? std::strerror(errno) : "end of file"));
    }
    offset += static_cast<uint64_t>(n);
    out = out.subspan(static_cast<size_t>(n));
  }
}

std::vector<FileRange> File::places(uint64_t offset, uint64_t count) const {
  return {{path_, "", begin_ + offset, count, ""}};
}

uint32_t File::crc(uint64_t offset, uint64_t size) const {
  std::vector<std::byte> buffer(std::min<uint64_t>(size, 1 << 20));
  uint32_t crc = 0;
  for (const uint64_t end = offset + size; offset < end; offset += buffer.size()) {
    const auto chunk = std::span(buffer).first(std::min<uint64_t>(buffer.size(), end - offset));
    read(offset, chunk);
    crc = crc32(chunk, crc);
  }
  return crc;
}

void OwnedBytes::read(uint64_t offset, std::span<std::byte> out) const {
  check_range(offset, out.size(), "a buffer in memory");
  std::copy_n(bytes_.begin() + static_cast<ptrdiff_t>(offset), out.size(), out.begin());
}

SubRange::SubRange(BytesPtr whole, uint64_t offset, uint64_t size)
    : whole_(std::move(whole)), offset_(offset), size_(size) {
  if (offset > whole_->size() || size > whole_->size() - offset) {
    throw DamagedFile("a view of " + std::to_string(size) + " bytes at " + std::to_string(offset) +
                      " exceeds its storage of " + std::to_string(whole_->size()));
  }
}

void SubRange::read(uint64_t offset, std::span<std::byte> out) const {
  check_range(offset, out.size(), "a view");
  whole_->read(offset_ + offset, out);
}

std::vector<FileRange> SubRange::places(uint64_t offset, uint64_t count) const {
  return whole_->places(offset_ + offset, count);
}

StridedView::StridedView(BytesPtr storage, uint64_t element_size, uint64_t offset,
                         std::vector<int64_t> shape, std::vector<int64_t> strides)
    : storage_(std::move(storage)),
      element_size_(element_size),
      offset_(offset),
      size_(element_size),
      shape_(std::move(shape)),
      strides_(std::move(strides)) {
  // 128 bits cannot overflow below: each term is less than 2^126, and there are few.
  __int128 last = offset, bytes = element_size;
  for (size_t dim = 0; dim < shape_.size(); ++dim) {
    if (shape_[dim] < 0 || strides_.at(dim) < 0)
      throw DamagedFile("a view has a negative size or stride");
    bytes *= shape_[dim];
    last += static_cast<__int128>(std::max<int64_t>(shape_[dim] - 1, 0)) * strides_[dim];
    if (bytes > (__int128{1} << 48)) throw DamagedFile("a view is larger than 256 TiB");
  }
  if (bytes > std::max(storage_->size(), kMaxExpanded)) {
    throw DamagedFile("a view expands its storage of " + std::to_string(storage_->size()) +
                      " bytes to " + std::to_string(static_cast<uint64_t>(bytes)));
  }
  if (bytes > 0 && (last + 1) * element_size > storage_->size()) {
    throw DamagedFile("a view reaches beyond its storage of " + std::to_string(storage_->size()) +
                      " bytes");
  }
  size_ = static_cast<uint64_t>(bytes);
}

uint64_t StridedView::element_position(uint64_t index) const {
  uint64_t position = offset_;
  for (size_t dim = shape_.size(); dim-- > 0;) {
    const auto size = static_cast<uint64_t>(shape_[dim]);
    position += index % size * static_cast<uint64_t>(strides_[dim]);
    index /= size;
  }
  return position;
}

// Joins the places of consecutive elements.
std::vector<FileRange> StridedView::places(uint64_t offset, uint64_t count) const {
  std::vector<FileRange> places;
  for (uint64_t at = offset; at < offset + count; at += element_size_) {
    const uint64_t position = element_position(at / element_size_) * element_size_;
    for (FileRange& next : storage_->places(position, element_size_)) {
      FileRange* last = places.empty() ? nullptr : &places.back();
      if (last && last->file == next.file && last->offset + last->size == next.offset)
        last->size += next.size;
      else
        places.push_back(std::move(next));
    }
  }
  return places;
}

void StridedView::read(uint64_t offset, std::span<std::byte> out) const {
  check_range(offset, out.size(), "a strided view");
  if (offset % element_size_ != 0 || out.size() % element_size_ != 0) {
    throw DamagedFile("a strided view can only be read by whole elements");
  }
  // A small storage, e.g. an expanded view's, is read once for all elements. Rows with stride 1 are
  // read whole. Other rows are read element by element; in practice only small tensors have them.
  const uint64_t whole = storage_->size();
  std::vector<std::byte> copy(whole <= std::min(kSmallStorage, 16 * out.size()) ? whole : 0);
  if (!copy.empty()) storage_->read(0, copy);
  const bool rows = !shape_.empty() && strides_.back() == 1;
  const uint64_t run = rows ? static_cast<uint64_t>(shape_.back()) : 1;
  for (uint64_t index = offset / element_size_; !out.empty();) {
    const uint64_t n = std::min(run - index % run, out.size() / element_size_);
    const uint64_t at = element_position(index) * element_size_;
    if (copy.empty()) {
      storage_->read(at, out.first(n * element_size_));
    } else {
      std::memcpy(out.data(), copy.data() + at, n * element_size_);
    }
    out = out.subspan(n * element_size_);
    index += n;
  }
}

}  // namespace anymesh
