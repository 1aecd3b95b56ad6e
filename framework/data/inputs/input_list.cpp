#include "framework/data/inputs/input_list.h"

#include <glob.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>

#include "framework/util/errors.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> matches(const std::string& pattern) {
  glob_t found{};
  const int status = glob(pattern.c_str(), GLOB_ERR, nullptr, &found);
  std::vector<std::string> paths(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  globfree(&found);
  if (status == GLOB_NOMATCH) throw_error("--input '", pattern, "': no file matches");
  if (status != 0) throw_error("--input '", pattern, "': a folder of it cannot be read");
  return paths;
}

template <class... Suffixes>
bool is_one_of(const fs::path& suffix, Suffixes... suffixes) {
  return ((suffix == suffixes) || ...);
}

}  // namespace

std::vector<std::string> expand_inputs(const std::vector<std::string>& words) {
  std::vector<std::string> inputs;
  for (const std::string& word : words) {
    std::error_code ignored;
    if (word.find_first_of("*?[") == std::string::npos || fs::exists(word, ignored)) {
      inputs.push_back(word);
    } else {
      for (std::string& path : matches(word)) inputs.push_back(std::move(path));
    }
  }
  if (std::count(inputs.begin(), inputs.end(), "-") > 1) throw_error("--input - is given twice");
  return inputs;
}

void check_inputs(const std::vector<std::string>& inputs) {
  for (const std::string& input : inputs)
    if (!is_pipe(input)) open_text(input);
}

std::optional<uint64_t> size_on_disk(const std::vector<std::string>& inputs) {
  uint64_t sum = 0;
  for (const std::string& input : inputs) {
    struct stat status {};
    if ((input == "-" ? fstat(0, &status) : stat(input.c_str(), &status)) != 0) return {};
    if (!S_ISREG(status.st_mode)) return {};
    sum += static_cast<uint64_t>(status.st_size);
  }
  return sum;
}

bool is_pipe(const std::string& input) {
  std::error_code ignored;
  return input == "-" || input.starts_with("/dev/") || fs::is_fifo(input, ignored);
}

std::optional<TextKind> kind_by_name(const std::string& input) {
  fs::path name = fs::path(input).filename();
  if (is_one_of(name.extension(), ".gz", ".zst", ".zstd")) name = name.stem();
  const fs::path suffix = name.extension();
  if (is_one_of(suffix, ".jsonl", ".json")) return TextKind::kJsonLines;
  if (suffix == ".txt") return TextKind::kPlain;
  if (is_pipe(input) || is_one_of(suffix, ".parquet", ".xz", ".bz2", ".zip", ".tar", ".tgz"))
    return std::nullopt;
  throw_error("--input ", input,
              ": expected a name in .jsonl, .json or .txt, perhaps with .gz or .zst behind");
}

}  // namespace anymesh
