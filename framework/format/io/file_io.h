#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace anymesh {

// Writes files so that a crash leaves either the old or the new state, never half of one: write
// beside, sync, rename, sync the folder. All functions throw std::runtime_error, which names the
// path and the system's reason.

inline constexpr std::string_view kTemporarySuffix = ".tmp";  // being written, or being removed
inline constexpr std::string_view kReplacedSuffix = ".old";   // followed by .tmp: being replaced
inline constexpr std::string_view kLockSuffix = ".lock";      // .NAME.lock: output_lock.h

// Throws "cannot write to PATH: No space left on device", by errno.
[[noreturn]] void throw_system_error(const std::string& action, const std::filesystem::path& path);

void sync_file(const std::filesystem::path& path);
// Syncs the whole file system that holds `path`: one call instead of one for each of many files.
void sync_file_system(const std::filesystem::path& path);
// Returns PATH.tmp, under which a file or folder is written before it gets its name.
std::filesystem::path temporary_of(const std::filesystem::path& path);
// A file PATH.1a2b3c4d.tmp with an unused name, which becomes PATH or goes:
//
//   NewFile file(folder / "latest");  // empty; first removes a killed run's files of such names
//   ...                               // write to file.path()
//   file.publish();                   // syncs it, renames it over PATH, syncs the folder
//
// A flock on it says that somebody writes it, so that no other process takes it for a killed run's.
class NewFile {
 public:
  explicit NewFile(std::filesystem::path to);
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  void publish();

 private:
  std::filesystem::path to_, path_;
  int descriptor_ = -1;
};

// Returns the PATH of a NewFile's name, or nothing for any other name.
std::optional<std::filesystem::path> made_beside(const std::filesystem::path& temporary);
// Removes the files that killed runs were making of a `name` in the folder, where is_ours(name).
void remove_unfinished(const std::filesystem::path& folder,
                       const std::function<bool(const std::filesystem::path& name)>& is_ours);
void write_text_atomically(const std::filesystem::path& path, std::string_view text);
std::string read_text(const std::filesystem::path& path, uint64_t most = 64 << 10);  // bytes
// Renames `from`, replacing a file named `to`, then syncs the folder.
void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to);
// Syncs the folder `from` and renames it to `to`. An existing folder `to` is replaced as a whole:
// the two swap names in one step. Where the file system cannot swap, the old folder is first
// renamed to TO.old.tmp. Returns the old folder's new path, for the caller to remove_ours(), or an
// empty path if there was no old folder.
[[nodiscard]] std::filesystem::path publish_folder(const std::filesystem::path& from,
                                                   const std::filesystem::path& to);
std::filesystem::path replaced_of(const std::filesystem::path& to);
// Returns the path if it exists, else its nearest existing ancestor. Throws if that is no folder.
std::filesystem::path existing_folder(std::filesystem::path path);
// Lists a folder's entries for messages, without lock files: "global_step100, global_step50,
// latest" or "nothing".
std::string list_folder(const std::filesystem::path& folder);

// Returns "; PARENT holds: ..." for messages about a missing file or folder. If PARENT is missing
// too, returns "", or how to download `absent` if it looks like a hub model's ID (OWNER/NAME).
std::string list_parent(const std::filesystem::path& absent);

// Returns this machine's name, for messages about files that other machines wrote.
std::string host_name();

}  // namespace anymesh
