#include "framework/data/inputs/zstd_stream.h"

#include <new>

#include "framework/util/errors.h"

namespace anymesh {

ZstdStream::ZstdStream(std::unique_ptr<FileStream> file)
    : file_(std::move(file)),
      buffer_(ZSTD_DStreamOutSize()),
      state_(ZSTD_createDCtx(), ZSTD_freeDCtx) {
  if (!state_) throw std::bad_alloc();
  const ZSTD_bounds bounds = ZSTD_dParam_getBounds(ZSTD_d_windowLogMax);
  ZSTD_DCtx_setParameter(state_.get(), ZSTD_d_windowLogMax, bounds.upperBound);
}

std::string_view ZstdStream::read() {
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

}  // namespace anymesh
