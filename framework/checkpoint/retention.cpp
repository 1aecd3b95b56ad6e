#include "framework/checkpoint/retention.h"

#include <algorithm>
#include <map>

#include "framework/checkpoint/format/file_io.h"
#include "framework/checkpoint/format/names.h"

namespace anymesh {

namespace fs = std::filesystem;

std::vector<std::string> remove_old_checkpoints(const fs::path& save_dir, int64_t limit,
                                                int64_t retain_interval) {
  std::map<int64_t, fs::path, std::greater<>> tags;  // newest first
  for (const fs::directory_entry& entry : fs::directory_iterator(save_dir)) {
    const auto step = step_of_tag(entry.path().filename().string());
    if (step && entry.is_directory()) tags[*step] = entry.path();
  }
  const std::string latest = read_tag(save_dir / kLatestFile);
  std::vector<std::string> lines;
  int64_t kept = 0;
  for (const auto& [step, folder] : tags) {
    const bool retained = retain_interval > 0 && step % retain_interval == 0;
    if (kept++ < limit || retained || folder.filename() == latest) continue;
    fs::path doomed = folder;
    doomed += kTemporarySuffix;
    std::error_code error;
    fs::rename(folder, doomed, error);
    if (!error) fs::remove_all(doomed, error);
    lines.push_back(error ? "WARNING: cannot remove " + folder.string() + ": " + error.message()
                          : "removed " + folder.string());
  }
  return lines;
}

}  // namespace anymesh
