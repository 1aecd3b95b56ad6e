#include "framework/checkpoint/format/universal_folder.h"

#include <set>
#include <stdexcept>

#include "framework/checkpoint/format/file_io.h"
#include "framework/checkpoint/format/manifest.h"
#include "framework/checkpoint/format/names.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

void remove_others(const fs::path& folder, const std::vector<StreamedFile>& files) {
  std::set<fs::path> kept_files, kept_folders{folder};
  for (const StreamedFile& file : files) {
    kept_files.insert(file.path);
    for (fs::path up = file.path.parent_path(); up != folder; up = up.parent_path())
      kept_folders.insert(up);
  }
  std::vector<fs::path> others;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const auto type = entry.symlink_status().type();
    if (!(type == fs::file_type::regular && kept_files.contains(entry.path())) &&
        !(type == fs::file_type::directory && kept_folders.contains(entry.path())))
      others.push_back(entry.path());
  }
  for (const fs::path& other : others) fs::remove_all(other);
}

void write_manifest(const fs::path& folder, const std::string& tag, int64_t iteration,
                    const std::vector<StreamedFile>& files, const std::vector<uint32_t>& crcs) {
  Manifest manifest{.tag = tag, .iteration = iteration};
  for (size_t i = 0; i < files.size(); ++i) {
    const fs::path& path = files[i].path;
    manifest.files.push_back(
        {path.lexically_relative(folder), fs::file_size(path), crcs[i], host_name()});
  }
  write_text_atomically(folder / kManifestFile, manifest.to_json());
}

// DeepSpeed looks for other names of the same metadata under ZeRO 3 than under 0 to 2.
std::string other_name(const CheckpointFileName& name) {
  return name.kind == CheckpointFileName::Kind::kZero3ModelStates
             ? model_states_file(name.mp_rank)
             : zero3_model_states_file(0, name.mp_rank);
}

// A hard link, or a copy where there are none.
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

void check_replaceable(const fs::path& folder, const std::string& what) {
  if (!fs::exists(folder) ||
      (fs::is_directory(folder) && (fs::is_empty(folder) || fs::exists(folder / kZeroFolder))))
    return;
  throw std::runtime_error(
      what + " " + folder.string() +
      " exists and is not a universal checkpoint; it would be replaced. Give another");
}

void prepare_universal_folder(const fs::path& temporary, const std::vector<StreamedFile>& files) {
  fs::create_directories(temporary);
  remove_others(temporary, files);
  for (const StreamedFile& file : files) fs::create_directories(file.path.parent_path());
}

void publish_universal_folder(const fs::path& output, int64_t iteration,
                              const std::vector<StreamedFile>& files,
                              const std::vector<uint32_t>& crcs) {
  const fs::path folder = temporary_of(output);
  write_manifest(folder, output.filename(), iteration, files, crcs);
  add_other_names(folder, files);
  sync_file_system(folder);
  publish_folder(folder, output);
  write_text_atomically(output.parent_path() / kLatestUniversalFile, output.filename().string());
}

}  // namespace anymesh
