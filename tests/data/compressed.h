// Compressed text, for the tests of inputs.
#pragma once

#include <zlib.h>
#include <zstd.h>

#include <string>

namespace anymesh {

// Returns a gzip member.
inline std::string gzipped(const std::string& text) {
  z_stream state{};
  deflateInit2(&state, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY);
  std::string member(deflateBound(&state, text.size()), '\0');
  state.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  state.avail_in = static_cast<uInt>(text.size());
  state.next_out = reinterpret_cast<Bytef*>(member.data());
  state.avail_out = static_cast<uInt>(member.size());
  deflate(&state, Z_FINISH);
  member.resize(state.total_out);
  deflateEnd(&state);
  return member;
}

// Returns a zstd frame with a checksum, as the program zstd writes it.
inline std::string zstd_frame(const std::string& text) {
  ZSTD_CCtx* const state = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(state, ZSTD_c_checksumFlag, 1);
  std::string frame(ZSTD_compressBound(text.size()), '\0');
  frame.resize(ZSTD_compress2(state, frame.data(), frame.size(), text.data(), text.size()));
  ZSTD_freeCCtx(state);
  return frame;
}

}  // namespace anymesh
