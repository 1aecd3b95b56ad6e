#include "framework/checkpoint/retention.h"

#include "framework/checkpoint/format/file_io.h"
#include "framework/checkpoint/format/names.h"

namespace anymesh {

namespace fs = std::filesystem;

std::vector<std::string> remove_old_checkpoints(const fs::path& save_dir, int64_t limit,
                                                int64_t retain_interval) {
  const std::string latest = read_tag(save_dir / kLatestFile);
  std::vector<std::string> lines;
  const auto newest = step_of_tag(latest);
  int64_t kept = 0;
  for (const auto& [step, tag] : tags_by_step(save_dir)) {
    if (newest && step > *newest) continue;  // the run went back to before it
    const bool retained = retain_interval > 0 && step % retain_interval == 0;
    if (kept++ < limit || retained || tag == latest) continue;
    const fs::path folder = save_dir / tag, doomed = temporary_of(folder);
    std::error_code error;
    fs::rename(folder, doomed, error);
    if (!error) fs::remove_all(doomed, error);
    lines.push_back(error ? "WARNING: cannot remove " + folder.string() + ": " + error.message()
                          : "removed " + folder.string());
  }
  return lines;
}

}  // namespace anymesh
