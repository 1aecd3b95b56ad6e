#include "framework/format/whole/universal_folder.h"

#include <algorithm>

#include "framework/format/io/file_io.h"
#include "framework/format/layout/names.h"
#include "framework/format/torch_file/zip.h"
#include "framework/format/whole/streamed_output.h"
#include "framework/util/errors.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStates[] = {kFp32State, kExpAvgState, kExpAvgSqState, kStepState};

// Returns the second name of a metadata file: DeepSpeed looks for other names under ZeRO 3 than
// under ZeRO 0 to 2.
std::string other_name(const CheckpointFileName& name) {
  return name.kind == CheckpointFileName::Kind::kZero3ModelStates
             ? model_states_file(name.mp_rank)
             : zero3_model_states_file(0, name.mp_rank);
}

// Whether `name` is the second name, by add_other_names(), of a file that is listed.
bool is_other_name(const fs::path& name, const IsOurs& listed) {
  const auto parsed = parse_checkpoint_file_name(name.string());
  return parsed && parsed->is_model_states() && listed(other_name(*parsed), false);
}

bool has_torch_file(const fs::path& path) {
  try {
    return ZipReader::is_zip(File(path));
  } catch (const std::exception&) {
    return false;
  }
}

// Decides by names alone.
bool is_of_kind(const fs::path& name, bool is_folder) {
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

// Adds second names as hard links, or as copies where the file system has no links.
void add_other_names(const fs::path& folder, const std::vector<StreamedFile>& files) {
  for (const StreamedFile& file : files) {
    const auto name = parse_checkpoint_file_name(file.path.filename().string());
    if (file.path.parent_path() != folder || !name || name->dp_rank > 0) continue;
    const fs::path other = folder / other_name(*name);
    fs::remove(other);
    std::error_code no_links;
    fs::create_hard_link(file.path, other, no_links);
    if (no_links) fs::copy_file(file.path, other);
  }
}

}  // namespace

IsOurs universal_entries(const fs::path& folder) {
  const auto manifest = readable_manifest(folder);
  if (!manifest) {
    const bool has_zero = fs::is_directory(fs::symlink_status(folder / kZeroFolder));
    return [folder, has_zero](const fs::path& name, bool is_folder) {
      return has_zero && is_of_kind(name, is_folder) &&
             (is_folder || has_torch_file(folder / name));
    };
  }
  const IsOurs listed = entries_of(*manifest);
  if (!listed(kZeroFolder, true)) return [](const fs::path&, bool) { return false; };
  return [listed](const fs::path& name, bool is_folder) {
    const fs::path plan = kPlanFile;
    return listed(name, is_folder) || name == (is_folder ? plan.parent_path() : plan) ||
           (!is_folder && is_other_name(name, listed));
  };
}

BuildPlan universal_plan(const fs::path& folder, const std::vector<StreamedFile>& files) {
  BuildPlan plan{.others = {kManifestFile, kPlanFile}};
  for (const StreamedFile& file : files) {
    const fs::path name = file.path.lexically_relative(folder);
    plan.files.insert(name);
    if (const auto parsed = parse_checkpoint_file_name(name.string()))
      plan.others.insert(other_name(*parsed));
  }
  return plan;
}

void publish_universal_folder(OutputFolder& out, const std::string& tag, int64_t iteration,
                              const std::vector<StreamedFile>& files,
                              const std::vector<uint32_t>& crcs) {
  write_manifest(out.folder(), tag, iteration, files, crcs);
  add_other_names(out.folder(), files);
  out.publish(kLatestUniversalFile);
}

}  // namespace anymesh
