#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace anymesh {

// Writing files so that a crash leaves either the old or the new state, never half of one: write
// beside, sync, rename, sync the folder. All throw std::runtime_error naming the path and the
// system's reason.

// "cannot write to PATH: No space left on device", by errno.
[[noreturn]] void throw_system_error(const std::string& action, const std::filesystem::path& path);

void sync_file(const std::filesystem::path& path);
// Everything that was written to the file system which holds `path`: one call instead of one for
// each of many files.
void sync_file_system(const std::filesystem::path& path);
// PATH.tmp: where a file or folder is written, before it gets its name.
std::filesystem::path temporary_of(const std::filesystem::path& path);
// Makes an empty file PATH.1a2b3c4d.tmp, of a name that nothing had, and returns its path.
std::filesystem::path new_file_beside(const std::filesystem::path& path);
// The path that new_file_beside() was given, of such a name; else nothing.
std::optional<std::filesystem::path> made_beside(const std::filesystem::path& temporary);
void write_text_atomically(const std::filesystem::path& path, std::string_view text);
std::string read_text(const std::filesystem::path& path, uint64_t most = 64 << 10);  // bytes
// What `latest` or `latest_universal` says, without the white space that an editor may leave
// behind.
std::string read_tag(const std::filesystem::path& pointer_file);
// Whether ROOT/TAG is below ROOT, whatever ROOT is: "global_step4" is, as are the several parts of
// Lightning's "epoch=1-step=2.ckpt/checkpoint"; absolute paths and ones with "." or ".." are not.
bool is_tag_name(std::string_view tag);
// The folder ROOT/TAG. Throws where there is none below `root`; `source` names what says the tag: a
// pointer file, --tag.
std::filesystem::path folder_of_tag(const std::filesystem::path& root, const std::string& tag,
                                    const std::string& source);
// Renames, replacing a file of that name, then syncs the folder.
void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to);
// Syncs the folder `from` and gives it the name `to`. A folder that has the name is replaced as a
// whole: the two swap names in one step. Where the file system cannot swap, the old one makes room,
// as TO.old.tmp. Returns where the old one is now, for the caller to remove_ours(); empty if there
// was none.
[[nodiscard]] std::filesystem::path publish_folder(const std::filesystem::path& from,
                                                   const std::filesystem::path& to);
std::filesystem::path replaced_of(const std::filesystem::path& to);
// Is it a TO.old.tmp whose TO is missing, after a kill in that moment? Gives it its name back.
bool restore_replaced(const std::filesystem::path& old);
// The path, if it is a folder, else the folder that will hold it, or hold the folder that will, ...
std::filesystem::path existing_folder(std::filesystem::path path);
// "latest, global_step50, global_step100" or "nothing": what a folder holds, for messages.
std::string list_folder(const std::filesystem::path& folder);

// Of a folder that is not there: "; PARENT holds: ..." or, where there is no such folder either,
// "".
std::string list_parent(const std::filesystem::path& absent);

// Of this machine, for messages about files that others wrote.
std::string host_name();

}  // namespace anymesh
