#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "framework/format/folder/output_lock.h"

namespace anymesh {

// A kind of file, recognised by its first bytes.
struct OutputKind {
  std::string name;  // "a loss CSV"
  std::string start;
};

// Claims the output file that a user names. It must not be an input or a file of another kind:
//
//   const auto lock = claim_output("--output", "plot.svg", {"an SVG", "<svg"}, {"loss.csv"});
//
// Returns the sole right to write the file, and does not touch the file. Throws std::runtime_error
// if the output
// - is one of `inputs`, even under another name;
// - is a non-empty file that does not begin with `kind.start`;
// - is a folder or a FIFO;
// - is locked by another process.
// Character devices and the shell's pipes (/dev/fd/63) need no lock: returns nothing.
std::optional<OutputLock> claim_output(const std::string& flag, const std::filesystem::path& output,
                                       const OutputKind& kind,
                                       const std::vector<std::filesystem::path>& inputs = {});

// Claims the file and writes it. An existing file stays until the new one is whole. Through a link,
// writes the file that the link leads to.
void write_output(const std::string& flag, const std::filesystem::path& output,
                  const OutputKind& kind, std::string_view text,
                  const std::vector<std::filesystem::path>& inputs = {});

}  // namespace anymesh
