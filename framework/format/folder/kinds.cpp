#include "framework/format/folder/kinds.h"

#include <algorithm>
#include <vector>

#include "framework/format/io/file_io.h"
#include "framework/format/torch_file/zip.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStates[] = {kFp32State, kExpAvgState, kExpAvgSqState, kStepState};

bool has_torch_file(const fs::path& path) {
  try {
    return ZipReader::is_zip(File(path));
  } catch (const std::exception&) {
    return false;
  }
}

bool has_universal_name(const fs::path& name, bool is_folder) {
  const std::vector<fs::path> parts(name.begin(), name.end());
  if (parts.size() == 1) {
    const auto parsed = parse_checkpoint_file_name(name.string());
    return is_folder ? name == kZeroFolder
                     : parsed && parsed->kind != CheckpointFileName::Kind::kOptimStates;
  }
  if (parts[0] != kZeroFolder) return false;
  if (parts.size() == 2) return is_folder || parts[1] == kOptimizerStateFile;
  return parts.size() == 3 && !is_folder && std::ranges::any_of(kStates, [&](std::string_view s) {
           return parts[2] == state_file(s);
         });
}

// Returns the final name of a file with a temporary name.
fs::path final_name(const fs::path& name) {
  if (const auto file = made_beside(name)) return *file;
  return name.extension() == kTemporarySuffix ? fs::path(name).replace_extension() : name;
}

bool has_tag_name(const fs::path& name, bool is_folder) {
  return !is_folder && (name == kManifestFile || name == kWeightsFile ||
                        parse_checkpoint_file_name(name.string()));
}

bool holds_a_checkpoint_file(const fs::path& folder) {
  if (!fs::is_directory(fs::symlink_status(folder))) return false;
  return std::ranges::any_of(fs::directory_iterator(folder), [](const auto& entry) {
    const fs::path name = final_name(entry.path().filename());
    return parse_checkpoint_file_name(name.string()).has_value();
  });
}

}  // namespace

IsOurs listed_entries(const fs::path& folder) {
  const auto manifest = readable_manifest(folder);
  return manifest ? entries_of(*manifest) : nothing_is_ours;
}

std::optional<std::string> second_name(const std::string& file) {
  const auto name = parse_checkpoint_file_name(file);
  if (!name || !name->is_model_states() || name->dp_rank > 0) return std::nullopt;
  return name->dp_rank < 0 ? zero3_model_states_file(0, name->mp_rank)
                           : model_states_file(name->mp_rank);
}

IsOurs universal_entries(const fs::path& folder) {
  const auto manifest = readable_manifest(folder);
  if (!manifest) {
    if (!fs::is_directory(fs::symlink_status(folder / kZeroFolder))) return nothing_is_ours;
    return [folder](const fs::path& name, bool is_folder) {
      return has_universal_name(name, is_folder) && (is_folder || has_torch_file(folder / name));
    };
  }
  const IsOurs listed = entries_of(*manifest);
  if (!listed(kZeroFolder, true)) return nothing_is_ours;
  return [listed](const fs::path& name, bool is_folder) {
    const fs::path plan = kPlanFile;
    const auto first = second_name(name.string());
    return listed(name, is_folder) || name == (is_folder ? plan.parent_path() : plan) ||
           (!is_folder && first && listed(*first, false));
  };
}

IsOurs tag_entries(const fs::path& folder) {
  if (const auto manifest = readable_manifest(folder)) return entries_of(*manifest);
  return holds_a_checkpoint_file(folder) ? has_tag_name : nothing_is_ours;
}

IsOurs leftover_entries(const fs::path& folder) {
  const bool is_of_a_save = holds_a_checkpoint_file(folder) || readable_manifest(folder);
  return entries_left(folder, [is_of_a_save](const fs::path& name, bool is_folder) {
    const fs::path file = final_name(name);
    return is_folder ? file != name && is_mark(file) : is_of_a_save && has_tag_name(file, false);
  });
}

bool is_mark(const std::string& name) {
  return std::ranges::all_of(name, [](char c) { return '0' <= c && c <= '9'; });
}

}  // namespace anymesh
