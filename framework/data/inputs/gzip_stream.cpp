#include <zlib.h>

#include <new>

#include "framework/data/inputs/byte_stream.h"
#include "framework/util/errors.h"

namespace anymesh {
namespace {

constexpr size_t kUnpackedBytes = 256 << 10;
constexpr int kGzipOnly = 16 + MAX_WBITS;

class GzipStream final : public ByteStream {
 public:
  explicit GzipStream(std::unique_ptr<FileStream> file)
      : file_(std::move(file)), buffer_(kUnpackedBytes) {
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

}  // namespace

std::unique_ptr<ByteStream> unpack_gzip(std::unique_ptr<FileStream> file) {
  return std::make_unique<GzipStream>(std::move(file));
}

}  // namespace anymesh
