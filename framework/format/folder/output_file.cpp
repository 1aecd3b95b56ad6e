#include "framework/format/folder/output_file.h"

#include <fstream>
#include <stdexcept>

#include "framework/format/io/file_io.h"
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

void write_output(const std::string& flag, const fs::path& output, const OutputKind& kind,
                  std::string_view text, const std::vector<fs::path>& inputs) {
  const auto lock = claim_output(flag, output, kind, inputs);
  try {
    if (lock) return write_text_atomically(fs::weakly_canonical(output), text);
    std::ofstream stream(output, std::ios::binary);
    stream << text;
    if (!stream.flush()) throw_system_error("write to", output);
  } catch (const std::runtime_error& error) {
    throw UserError(flag + " " + printable(output.string()) +
                    ": cannot write the file: " + error.what());
  }
}

}  // namespace anymesh
