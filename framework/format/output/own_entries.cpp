#include "framework/format/output/own_entries.h"

#include <algorithm>
#include <memory>
#include <string_view>
#include <vector>

#include "framework/format/layout/names.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSaysWhatIsOurs[] = {kManifestFile, kRecordFile, kJournalFile};

// Appends the entries of folder / name in sorted order, each folder after its contents. The walk
// ends at the first foreign entry, which it stores in `foreign`.
void walk(const fs::path& folder, const fs::path& name, const IsOurs& is_ours,
          std::vector<fs::path>& entries, std::string& foreign) {
  std::vector<fs::path> names;
  for (const auto& entry : fs::directory_iterator(folder / name))
    names.push_back(name / entry.path().filename());
  std::ranges::sort(names);
  for (const fs::path& entry : names) {
    const fs::file_type type = fs::symlink_status(folder / entry).type();
    const bool is_folder = type == fs::file_type::directory;
    if ((!is_folder && type != fs::file_type::regular) || !is_ours(entry, is_folder)) {
      foreign = (folder / entry).string();
      return;
    }
    if (is_folder) walk(folder, entry, is_ours, entries, foreign);
    if (!foreign.empty()) return;
    entries.push_back(folder / entry);
  }
}

std::vector<fs::path> own_entries(const fs::path& folder, const IsOurs& is_ours,
                                  std::string& foreign) {
  std::vector<fs::path> entries;
  const fs::file_type type = fs::symlink_status(folder).type();
  if (type == fs::file_type::not_found) return entries;
  if (type == fs::file_type::directory)
    walk(folder, "", is_ours, entries, foreign);
  else
    foreign = folder.string();
  entries.push_back(folder);
  return entries;
}

}  // namespace

IsOurs entries_of(const Manifest& manifest) {
  struct Known {
    std::set<fs::path> files{kManifestFile}, folders;
  };
  const auto known = std::make_shared<Known>();
  for (const Manifest::File& file : manifest.files) {
    known->files.insert(file.name);
    for (fs::path up = fs::path(file.name).parent_path(); !up.empty(); up = up.parent_path())
      known->folders.insert(up);
  }
  return [known](const fs::path& name, bool is_folder) {
    return (is_folder ? known->folders : known->files).contains(name);
  };
}

std::string first_foreign_entry(const fs::path& folder, const IsOurs& is_ours) {
  std::string foreign;
  own_entries(folder, is_ours, foreign);
  return foreign;
}

std::string remove_ours(const fs::path& folder, const IsOurs& is_ours,
                        const std::set<fs::path>& kept) {
  std::string foreign;
  std::vector<fs::path> entries = own_entries(folder, is_ours, foreign);
  if (!foreign.empty()) return foreign + " is not ours";
  std::stable_partition(entries.begin(), entries.end(), [&](const fs::path& entry) {
    return entry != folder && std::ranges::none_of(kSaysWhatIsOurs, [&](std::string_view name) {
             return entry == folder / name;
           });
  });
  for (const fs::path& entry : entries) {
    if (kept.contains(entry.lexically_relative(folder))) continue;
    std::error_code error;
    fs::remove(entry, error);
    if (error == std::errc::directory_not_empty && !kept.empty()) continue;
    if (error) return entry.string() + ": " + error.message();
  }
  return "";
}

}  // namespace anymesh
