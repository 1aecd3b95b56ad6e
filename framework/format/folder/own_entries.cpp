#include "framework/format/folder/own_entries.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

#include "framework/format/io/file_io.h"
#include "framework/format/layout/names.h"
#include "framework/util/errors.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kLists[] = {kManifestFile, kRecordFile, kJournalFile};

// An open folder, which stays the same whatever is renamed.
class Handle {
 public:
  Handle(int at, const fs::path& name)
      : descriptor_(openat(at, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)) {}
  ~Handle() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  int get() const { return descriptor_; }

  std::vector<std::string> names() const {
    std::vector<std::string> names;
    DIR* const list = fdopendir(fcntl(descriptor_, F_DUPFD_CLOEXEC, 0));
    if (!list) return names;
    while (const dirent* entry = readdir(list))
      if (const std::string name = entry->d_name; name != "." && name != "..")
        names.push_back(name);
    closedir(list);
    std::ranges::sort(names);
    return names;
  }

 private:
  int descriptor_;
};

struct Entry {
  fs::path name;  // relative to the folder
  bool is_folder;
};

// The entries of a folder in sorted order, each folder after its contents.
struct Entries {
  Entries(const fs::path& folder, const IsOurs& is_ours) {
    const fs::file_type type = fs::symlink_status(folder).type();
    if (type == fs::file_type::directory)
      walk(AT_FDCWD, folder, "", is_ours);
    else if (type != fs::file_type::not_found)
      foreign = folder.string();
    if (!foreign.empty()) all.clear();
  }

  // Ends at the first foreign entry.
  void walk(int at, const fs::path& path, const fs::path& name, const IsOurs& is_ours) {
    const Handle folder(at, name.empty() ? path : name.filename());
    if (folder.get() < 0) throw_system_error("open", path);
    for (const std::string& entry : folder.names()) {
      struct stat status {};
      if (fstatat(folder.get(), entry.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) continue;
      const bool is_folder = S_ISDIR(status.st_mode);
      if ((!is_folder && !S_ISREG(status.st_mode)) || !is_ours(name / entry, is_folder))
        foreign = (path / entry).string();
      else if (is_folder)
        walk(folder.get(), path / entry, name / entry, is_ours);
      if (!foreign.empty()) return;
      all.push_back({name / entry, is_folder});
    }
  }

  std::vector<Entry> all;
  std::string foreign;  // empty if there is none
};

// Removes the entry [first, last) below an open folder. Returns errno.
int remove_below(int at, fs::path::iterator first, fs::path::iterator last, bool is_folder) {
  if (std::next(first) == last)
    return unlinkat(at, first->c_str(), is_folder ? AT_REMOVEDIR : 0) == 0 ? 0 : errno;
  const Handle folder(at, *first);
  return folder.get() < 0 ? errno : remove_below(folder.get(), std::next(first), last, is_folder);
}

// Lists of what is ours go last, and building.json as the last of them.
int order_of_removal(const Entry& entry) {
  if (entry.name == kJournalFile) return 2;
  return std::ranges::find(kLists, entry.name.native()) == std::end(kLists) ? 0 : 1;
}

// Whether no run has begun to remove the folder.
bool is_whole(const fs::path& folder) {
  if (!fs::is_directory(fs::symlink_status(folder)) || fs::is_empty(folder) ||
      fs::exists(folder / kJournalFile))
    return false;
  return std::ranges::all_of(kLists, [&](std::string_view list) {
    const auto manifest = readable_manifest(folder, list);
    return !manifest || size_damage(folder, manifest->files).empty();
  });
}

}  // namespace

bool nothing_is_ours(const fs::path&, bool) { return false; }

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

IsOurs entries_left(const fs::path& folder, const IsOurs& otherwise) {
  const auto journal = readable_manifest(folder, kJournalFile);
  const IsOurs listed = journal ? entries_of(*journal) : otherwise;
  return [listed, lists_folders = journal.has_value()](const fs::path& name, bool is_folder) {
    const fs::path file = made_beside(name).value_or(name);
    return file == kJournalFile || listed(file, is_folder) || listed(name, is_folder) ||
           (lists_folders && is_folder && listed(name, false));
  };
}

void write_journal(const fs::path& folder, std::set<fs::path> names) {
  const Entries present(folder, [](const fs::path&, bool) { return true; });
  for (const Entry& entry : present.all) names.insert(entry.name);
  Manifest journal{.tag = folder.stem()};
  for (const fs::path& name : names) journal.files.push_back({.name = name});
  write_text_atomically(folder / kJournalFile, journal.to_json());
}

std::string first_foreign_entry(const fs::path& folder, const IsOurs& is_ours) {
  return Entries(folder, is_ours).foreign;
}

IsOurs present_entries(const fs::path& folder, const IsOurs& is_ours, std::string& foreign) {
  const Entries entries(folder, is_ours);
  foreign = entries.foreign;
  const auto names = std::make_shared<std::set<fs::path>>();
  for (const Entry& entry : entries.all) names->insert(entry.name);
  return [names](const fs::path& name, bool) { return names->contains(name); };
}

std::string remove_ours(const fs::path& folder, const IsOurs& is_ours,
                        const std::set<fs::path>& kept) {
  Entries entries(folder, is_ours);
  if (!entries.foreign.empty()) return entries.foreign + " is not ours";
  if (!entries.all.empty() && std::ranges::none_of(kLists, [&](std::string_view list) {
        return readable_manifest(folder, list).has_value();
      })) {
    try {
      write_journal(folder, {});
      entries.all.push_back({kJournalFile, false});
    } catch (const std::exception&) {  // a full disk must not keep us from making room
    }
  }
  std::ranges::stable_sort(entries.all, {}, order_of_removal);
  const auto failure = [](const fs::path& path, int error) {
    return error == 0 || error == ENOENT ? "" : path.string() + ": " + std::strerror(error);
  };
  const Handle root(AT_FDCWD, folder);
  if (root.get() < 0) return failure(folder, errno);
  for (const auto& [name, is_folder] : entries.all) {
    if (kept.contains(name)) continue;
    const int error = remove_below(root.get(), name.begin(), name.end(), is_folder);
    if (error == ENOTEMPTY && !kept.empty()) continue;
    if (const std::string left = failure(folder / name, error); !left.empty()) return left;
  }
  return kept.empty() && rmdir(folder.c_str()) != 0 ? failure(folder, errno) : "";
}

bool restore_replaced(const fs::path& old, const IsOurs& is_ours) {
  const std::string name = old.string(), suffix = replaced_of("");
  if (!name.ends_with(suffix)) return false;
  const fs::path to = name.substr(0, name.size() - suffix.size());
  if (fs::exists(fs::symlink_status(to)) || !is_whole(old) ||
      !first_foreign_entry(old, is_ours).empty())
    return false;
  rename_durably(old, to);
  return true;
}

fs::path whole_folder(const fs::path& to) {
  const fs::path old = replaced_of(to);
  if (fs::exists(to) || !is_whole(old)) return to;
  const auto manifest = readable_manifest(old);
  return manifest && manifest->tag == to.filename() ? old : to;
}

}  // namespace anymesh
