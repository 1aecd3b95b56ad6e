#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "framework/checkpoint/format/output_lock.h"

namespace anymesh {

// A kind of file, told by its first bytes.
struct OutputKind {
  std::string name;  // "a loss CSV"
  std::string start;
};

// A file that the user names for an output is not to be one of another kind, nor an input:
//
//   const auto lock = claim_output("--output", "plot.svg", {"an SVG", "<svg"}, {"loss.csv"});
//
// Touches nothing, and gives the sole right to write the file. Throws std::runtime_error for one of
// `inputs`, under whatever name; for a file that is not empty and does not begin as its kind does;
// for a folder or a FIFO; and where another process has the right. Devices and the shell's pipes,
// /dev/fd/63, need none.
std::optional<OutputLock> claim_output(const std::string& flag, const std::filesystem::path& output,
                                       const OutputKind& kind,
                                       const std::vector<std::filesystem::path>& inputs = {});

}  // namespace anymesh
