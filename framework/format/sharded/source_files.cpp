#include "framework/format/sharded/source_files.h"

#include <sys/stat.h>

#include <stdexcept>

#include "framework/format/layout/names.h"
#include "framework/util/errors.h"

namespace anymesh {

namespace fs = std::filesystem;

SourceFiles::SourceFiles(const fs::path& path) {
  const bool is_index = path.string().ends_with(kIndexSuffix);
  const fs::path folder = is_index ? fs::absolute(path).parent_path() : path;
  if (!fs::is_directory(folder)) {
    add(path);
    return;
  }
  for (const auto& entry : fs::directory_iterator(folder)) {
    add(entry.path());
    if (!fs::exists(entry.path() / kDcpMetadata)) continue;
    for (const auto& part : fs::directory_iterator(entry)) add(part.path());
  }
  if (!fs::is_directory(folder / kZeroFolder)) return;
  for (const auto& entry : fs::recursive_directory_iterator(folder / kZeroFolder))
    add(entry.path());
}

// Follows links, since a model hub's cache holds weights as links. Returns false if there is no
// regular file.
bool SourceFiles::look(const fs::path& file, State& state) {
  struct stat status;
  if (stat(file.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return false;
  state = {status.st_ino, static_cast<uint64_t>(status.st_size), status.st_mtim.tv_sec,
           status.st_mtim.tv_nsec};
  return true;
}

void SourceFiles::add(const fs::path& file) {
  if (State state; look(file, state)) files_.emplace(file, state);
}

void SourceFiles::expect_unchanged() const {
  for (const auto& [file, before] : files_) {
    State now;
    const bool is_there = look(file, now);
    if (is_there && now == before) continue;
    throw Unreadable(
        file.string() + (is_there ? ": was written to" : ": was removed") +
        " while it was being read, so that the output may have parts of two checkpoints; it is not "
        "kept. Run it again when nobody writes there");
  }
}

}  // namespace anymesh
