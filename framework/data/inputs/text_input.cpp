#include "framework/data/inputs/input_list.h"
#include "framework/util/errors.h"
#include "framework/util/shell_word.h"

namespace anymesh {
namespace {

using namespace std::string_view_literals;

// Converts a batch of rows at a time, so that memory does not depend on the file's size.
constexpr std::string_view kParquetToJson =
    "python3 -c 'import sys, json, pyarrow.parquet as p; [print(json.dumps(row, default=str)) for "
    "b in p.ParquetFile(sys.argv[1]).iter_batches() for row in b.to_pylist()]'";
constexpr std::string_view kFromUtf16 = "iconv -f UTF-16 -t UTF-8";

struct Refused {
  std::string_view begin;    // its first bytes, from `offset` on
  std::string_view kind;     // what such a file is
  std::string_view command;  // prints it as text; the path follows
  size_t offset = 0;
};
constexpr Refused kRefused[] = {{"\xfd\x37zXZ"sv, "is compressed by xz", "xzcat"},
                                {"BZh"sv, "is compressed by bzip2", "bzcat"},
                                {"PK\x03\x04"sv, "is a zip archive", "unzip -p"},
                                {"PAR1"sv, "is parquet", kParquetToJson},
                                {"ustar"sv, "is a tar archive", "tar -xOf", 257},
                                {"\xff\xfe"sv, "is UTF-16, expected UTF-8", kFromUtf16},
                                {"\xfe\xff"sv, "is UTF-16, expected UTF-8", kFromUtf16}};
constexpr size_t kLongestBeginning = 262;

bool is_gzip(std::string_view start) { return start.starts_with("\x1f\x8b"sv); }

// The second of the marks is a skippable frame's, which parallel compressors begin with.
bool is_zstd(std::string_view start) {
  return start.starts_with("\x28\xb5\x2f\xfd"sv) ||
         (start.size() > 3 && (start[0] & 0xf0) == 0x50 && start.substr(1, 3) == "\x2a\x4d\x18"sv);
}

void refuse_other_formats(ByteStream& text, const std::string& path, std::string_view unpack) {
  const std::string_view start = text.peek(kLongestBeginning);
  if (!unpack.empty() && (is_gzip(start) || is_zstd(start)))
    throw_error(input_name(path), ": is compressed twice; unpack it once: ", unpack, " ",
                shell_word(path));
  for (const auto& [begin, kind, command, offset] : kRefused) {
    if (start.size() < offset || !start.substr(offset).starts_with(begin)) continue;
    const std::string packed = unpack.empty() ? "" : " once it is unpacked";
    const std::string file = path == "-" || !unpack.empty() ? "FILE" : shell_word(path);
    throw_error(input_name(path), ": ", kind, packed, "; convert it first: ", command, " ", file,
                " | preprocess_data --input - ...");
  }
}

}  // namespace

std::unique_ptr<ByteStream> open_text(const std::string& path) {
  auto file = std::make_unique<FileStream>(path);
  std::unique_ptr<ByteStream> text;
  std::string_view unpack;
  const std::string_view start = file->peek(4);
  if (is_gzip(start)) {
    text = unpack_gzip(std::move(file));
    unpack = "zcat";
  } else if (is_zstd(start)) {
    text = unpack_zstd(std::move(file));
    unpack = "zstdcat";
  } else {
    text = std::move(file);
  }
  refuse_other_formats(*text, path, unpack);
  return text;
}

}  // namespace anymesh
