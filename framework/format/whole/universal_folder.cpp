#include "framework/format/whole/universal_folder.h"

#include <algorithm>
#include <optional>
#include <stdexcept>

#include "framework/format/io/file_io.h"
#include "framework/format/layout/names.h"
#include "framework/format/output/build_folder.h"
#include "framework/format/output/manifest.h"
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
  if (!fs::is_directory(fs::symlink_status(folder / kZeroFolder)))
    return [](const fs::path&, bool) { return false; };
  std::optional<Manifest> manifest;
  try {
    manifest = read_manifest(folder);
  } catch (const std::runtime_error&) {  // an unreadable manifest counts as none
  }
  if (!manifest) {
    return [folder](const fs::path& name, bool is_folder) {
      return is_of_kind(name, is_folder) && (is_folder || has_torch_file(folder / name));
    };
  }
  const IsOurs listed = entries_of(*manifest);
  return [listed](const fs::path& name, bool is_folder) {
    const fs::path plan = kPlanFile;
    return listed(name, is_folder) || name == (is_folder ? plan.parent_path() : plan) ||
           (!is_folder && is_other_name(name, listed));
  };
}

void check_replaceable(const fs::path& folder, const std::string& what) {
  const std::string foreign = first_foreign_entry(folder, universal_entries(folder));
  if (foreign.empty()) return;
  throw UserError(what + " " + folder.string() +
                  " exists and is not a universal checkpoint, or not that alone, by " + foreign +
                  "; it would be replaced. Give another");
}

void prepare_universal_folder(const fs::path& output, const std::string& what,
                              const std::vector<StreamedFile>& files) {
  const fs::path temporary = temporary_of(output), old = replaced_of(output);
  restore_replaced(old);
  check_replaceable(output, what);
  check_replaceable(old, what);
  BuildPlan plan{.others = {kManifestFile, kPlanFile}};
  for (const StreamedFile& file : files) {
    const fs::path name = file.path.lexically_relative(temporary);
    plan.files.insert(name);
    if (const auto parsed = parse_checkpoint_file_name(name.string()))
      plan.others.insert(other_name(*parsed));
  }
  prepare_build_folder(temporary, plan, universal_entries(temporary));
  remove_ours(old, universal_entries(old));
}

void publish_universal_folder(const fs::path& output, int64_t iteration,
                              const std::vector<StreamedFile>& files,
                              const std::vector<uint32_t>& crcs) {
  const fs::path folder = temporary_of(output);
  write_manifest(folder, output.filename(), iteration, files, crcs);
  add_other_names(folder, files);
  finish_build_folder(folder);
  check_replaceable(output, "the output");
  const fs::path old = publish_folder(folder, output);
  write_text_atomically(output.parent_path() / kLatestUniversalFile, output.filename().string());
  if (!old.empty()) remove_ours(old, universal_entries(old));
}

}  // namespace anymesh
