#include "framework/checkpoint/save/tag_entries.h"

#include <algorithm>
#include <stdexcept>

#include "framework/checkpoint/save/save_lock.h"
#include "framework/format/io.h"
#include "framework/format/layout.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

// Returns the final name of a file with a temporary name.
fs::path final_name(const fs::path& name) {
  if (const auto file = made_beside(name)) return *file;
  return name.extension() == kTemporarySuffix ? fs::path(name).replace_extension() : name;
}

bool is_named_as_ours(const fs::path& name, bool is_folder) {
  return !is_folder && (name == kManifestFile || name == kWeightsFile ||
                        parse_checkpoint_file_name(name.string()));
}

bool holds_a_checkpoint_file(const fs::path& folder) {
  return std::ranges::any_of(fs::directory_iterator(folder), [](const auto& entry) {
    const fs::path name = final_name(entry.path().filename());
    return parse_checkpoint_file_name(name.string()).has_value();
  });
}

bool is_folder_itself(const fs::path& path) { return fs::is_directory(fs::symlink_status(path)); }

bool nothing(const fs::path&, bool) { return false; }

}  // namespace

IsOurs entries_of_tag(const fs::path& folder) {
  if (!is_folder_itself(folder)) return nothing;
  if (const auto manifest = readable_manifest(folder)) return entries_of(*manifest);
  return holds_a_checkpoint_file(folder) ? is_named_as_ours : nothing;
}

IsOurs entries_of_leftover(const fs::path& folder) {
  if (!is_folder_itself(folder)) return nothing;
  const bool is_of_a_save = holds_a_checkpoint_file(folder) || readable_manifest(folder);
  return entries_left(folder, [is_of_a_save](const fs::path& name, bool is_folder) {
    const fs::path file = final_name(name);
    return is_folder ? file != name && is_mark(file)
                     : is_of_a_save && is_named_as_ours(file, false);
  });
}

}  // namespace anymesh
