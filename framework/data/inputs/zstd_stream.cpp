#include <zstd.h>

#include <new>

#include "framework/data/inputs/byte_stream.h"
#include "framework/util/errors.h"

namespace anymesh {
namespace {

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

std::unique_ptr<ByteStream> unpack_zstd(std::unique_ptr<FileStream> file) {
  return std::make_unique<ZstdStream>(std::move(file));
}

}  // namespace anymesh
