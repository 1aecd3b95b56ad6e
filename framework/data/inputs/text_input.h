#pragma once

#include <memory>
#include <string>

#include "framework/data/inputs/byte_stream.h"

namespace anymesh {

// Opens an input (input_list.h) as UTF-8 text. The first bytes tell whether it is compressed, not
// the name:
//
//   gzip, zstd                                        unpacked
//   xz, bzip2, zip, tar, parquet, UTF-16, packed twice refused, with the command that converts it
std::unique_ptr<ByteStream> open_text(const std::string& path);

}  // namespace anymesh
