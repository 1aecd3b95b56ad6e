#include "framework/data/inputs/byte_stream.h"

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <new>

#include "framework/util/errors.h"
#include "framework/util/input_file.h"

namespace anymesh {
namespace {

constexpr size_t kBufferBytes = 256 << 10;

int open_stream(const std::string& path) {
  const bool standard = path == "-";
  if (!standard && !std::filesystem::is_fifo(path)) return open_to_read(path, /*pipes=*/true);
  const int descriptor =
      standard ? fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0) : open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) throw_cannot_open(input_name(path), errno);
  return descriptor;
}

constexpr int kGzipOnly = 16 + MAX_WBITS;

class GzipStream final : public ByteStream {
 public:
  explicit GzipStream(std::unique_ptr<FileStream> file)
      : file_(std::move(file)), buffer_(kBufferBytes) {
    if (inflateInit2(&state_, kGzipOnly) != Z_OK) throw std::bad_alloc();
  }
  ~GzipStream() override { inflateEnd(&state_); }

  int64_t file_bytes() const override { return file_->file_bytes(); }

 private:
  std::string_view read() override {
    state_.next_out = reinterpret_cast<Bytef*>(buffer_.data());
    state_.avail_out = static_cast<uInt>(buffer_.size());
    while (state_.avail_out == buffer_.size()) {
      if (!inside_ && !begin_member()) return {};
      if (state_.avail_in == 0 && !more_ && !refill())
        throw_error<DamagedFile>(file_->name(), ": is cut off at byte ", file_bytes(),
                                 ", within gzip data");
      const int status = inflate(&state_, Z_NO_FLUSH);
      if (status == Z_MEM_ERROR) throw std::bad_alloc();
      if (status != Z_OK && status != Z_BUF_ERROR && status != Z_STREAM_END)
        throw_error<DamagedFile>(file_->name(), ": damaged gzip data at byte ",
                                 file_bytes() - state_.avail_in, ": ",
                                 state_.msg ? state_.msg : "not a gzip member");
      inside_ = status != Z_STREAM_END;
      more_ = inside_ && state_.avail_out == 0;
    }
    return {buffer_.data(), buffer_.size() - state_.avail_out};
  }

  // Returns false at the end of the file.
  bool refill() {
    const std::string_view piece = file_->next();
    // zlib takes no const pointer, but does not write there.
    state_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(piece.data()));
    state_.avail_in = static_cast<uInt>(piece.size());
    return !piece.empty();
  }

  // Returns false at the end of the file.
  bool begin_member() {
    while (state_.avail_in > 0 || refill()) {
      if (*state_.next_in != 0) {
        inflateReset(&state_);
        return inside_ = true;
      }
      ++state_.next_in;
      --state_.avail_in;
    }
    return false;
  }

  std::unique_ptr<FileStream> file_;
  std::vector<char> buffer_;
  z_stream state_{};
  bool inside_ = false;  // a member
  bool more_ = false;    // output may be held back that found no room
};

class ZstdStream final : public ByteStream {
 public:
  explicit ZstdStream(std::unique_ptr<FileStream> file)
      : file_(std::move(file)),
        buffer_(ZSTD_DStreamOutSize()),
        state_(ZSTD_createDCtx(), ZSTD_freeDCtx) {
    if (!state_) throw std::bad_alloc();
    const ZSTD_bounds bounds = ZSTD_dParam_getBounds(ZSTD_d_windowLogMax);
    ZSTD_DCtx_setParameter(state_.get(), ZSTD_d_windowLogMax, bounds.upperBound);
  }

  int64_t file_bytes() const override { return file_->file_bytes(); }

 private:
  std::string_view read() override {
    ZSTD_outBuffer out{buffer_.data(), buffer_.size(), 0};
    while (out.pos == 0) {
      if (in_.pos == in_.size && !more_) {
        const std::string_view piece = file_->next();
        in_ = {piece.data(), piece.size(), 0};
        if (piece.empty() && !inside_) return {};
        if (piece.empty())
          throw_error<DamagedFile>(file_->name(), ": is cut off at byte ", file_bytes(),
                                   ", within zstd data");
      }
      const size_t status = ZSTD_decompressStream(state_.get(), &out, &in_);
      if (ZSTD_isError(status))
        throw_error<DamagedFile>(file_->name(), ": damaged zstd data at byte ",
                                 file_bytes() - static_cast<int64_t>(in_.size - in_.pos), ": ",
                                 ZSTD_getErrorName(status));
      inside_ = status != 0;
      more_ = inside_ && out.pos == out.size;
    }
    return {buffer_.data(), out.pos};
  }

  std::unique_ptr<FileStream> file_;
  std::vector<char> buffer_;
  std::unique_ptr<ZSTD_DCtx, size_t (*)(ZSTD_DCtx*)> state_;
  ZSTD_inBuffer in_{};
  bool inside_ = false;  // a frame
  bool more_ = false;    // output may be held back that found no room
};

}  // namespace

FileStream::FileStream(const std::string& path)
    : name_(input_name(path)), descriptor_(open_stream(path)), buffer_(kBufferBytes) {}

FileStream::~FileStream() { close(descriptor_); }

std::string_view FileStream::read() {
  ssize_t count = 0;
  do count = ::read(descriptor_, buffer_.data(), buffer_.size());
  while (count < 0 && errno == EINTR);
  if (count < 0) throw_error<Unreadable>(name_, ": cannot read: ", std::strerror(errno));
  file_bytes_ += count;
  return {buffer_.data(), static_cast<size_t>(count)};
}

std::unique_ptr<ByteStream> unpack_gzip(std::unique_ptr<FileStream> file) {
  return std::make_unique<GzipStream>(std::move(file));
}

std::unique_ptr<ByteStream> unpack_zstd(std::unique_ptr<FileStream> file) {
  return std::make_unique<ZstdStream>(std::move(file));
}

}  // namespace anymesh
