// The inputs of preprocess_data, as paths: files, pipes, and "-" for standard input.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "framework/data/inputs/byte_stream.h"

namespace anymesh {

// Returns the inputs that the words mean, in order. The files that match a pattern ('a/*.jsonl')
// come sorted. A word that names a file is no pattern. Throws UserError for a pattern that no file
// matches, and if "-" comes twice.
std::vector<std::string> expand_inputs(const std::vector<std::string>& words);

// Opens an input as UTF-8 text. The first bytes tell whether it is compressed, not the name:
//
//   gzip, zstd                                        unpacked
//   xz, bzip2, zip, tar, parquet, UTF-16, packed twice refused, with the command that converts it
std::unique_ptr<ByteStream> open_text(const std::string& path);

// Opens every file as open_text() does, so that a wrong one is reported before the work begins.
// Pipes are left alone.
void check_inputs(const std::vector<std::string>& inputs);

// Returns the sum of the files' sizes; none if one is a pipe.
std::optional<uint64_t> size_on_disk(const std::vector<std::string>& inputs);

// Returns whether the input is not a file with a name of its own: "-", a FIFO, or in /dev, as what
// a shell makes of <(zcat a.gz).
bool is_pipe(const std::string& input);

enum class TextKind { kJsonLines, kPlain };

// Returns the kind that the name's suffix tells: kJsonLines for .jsonl and .json, kPlain for .txt.
// A .gz, .zst or .zstd behind it does not count. Returns none for a pipe without a suffix, and for
// .parquet and others that open_text() refuses. Throws UserError for another name.
std::optional<TextKind> kind_by_name(const std::string& input);

}  // namespace anymesh
