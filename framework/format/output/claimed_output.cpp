#include "framework/format/output/claimed_output.h"

#include <stdexcept>

#include "framework/util/errors.h"
#include "framework/util/input_file.h"
#include "framework/util/printable.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

// Returns the file's first bytes, at most `bytes` of them.
std::string start_of(const fs::path& path, size_t bytes) {
  InputFile file(path);
  std::string start(bytes, '\0');
  file.read(start.data(), static_cast<std::streamsize>(bytes));
  start.resize(static_cast<size_t>(file.gcount()));
  return start;
}

}  // namespace

std::optional<OutputLock> claim_output(const std::string& flag, const fs::path& output,
                                       const OutputKind& kind,
                                       const std::vector<fs::path>& inputs) {
  const std::string what = flag + " " + printable(output.string());
  const fs::file_status status = fs::status(output);
  if (fs::is_character_file(status) || output.native().starts_with("/dev/fd/") ||
      output.native().starts_with("/dev/std"))
    return std::nullopt;
  if (fs::exists(status) && !fs::is_regular_file(status))
    throw UserError(what + " is no file, expected one to write");
  for (const fs::path& input : inputs) {
    std::error_code absent;
    if (fs::equivalent(input, output, absent))
      throw UserError(what + " is an input, " + printable(input.string()) +
                      ", which it would replace; give another name");
  }
  if (fs::exists(status)) {
    const std::string start = start_of(output, kind.start.size());
    if (!start.empty() && start != kind.start)
      throw UserError(what + " exists and is not " + kind.name + ", which begins with '" +
                      printable(kind.start) + "'; it would be lost. Give another name");
  }
  const fs::path folder = output.has_parent_path() ? output.parent_path() : ".";
  if (!fs::is_directory(folder))
    throw UserError(what + ": cannot write the file: there is no folder " +
                    printable(folder.string()));
  return OutputLock::beside(output, flag);
}

}  // namespace anymesh
