#include "framework/format/io/file_io.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

#include "framework/format/io/byte_source.h"
#include "framework/format/io/direct_file.h"
#include "framework/util/errors.h"
#include "framework/util/format.h"
#include "framework/util/printable.h"

namespace anymesh {
namespace {

constexpr int kDigits = 8;  // in the name of a new file

// Opens the path, calls `sync` (fsync or syncfs) and closes it.
void sync_with(int (*sync)(int), const std::filesystem::path& path, int flags) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | flags);
  if (descriptor < 0) throw_system_error("open", path);
  const int result = sync(descriptor);
  const int reason = errno;
  close(descriptor);
  errno = reason;
  if (result != 0) throw_system_error("sync", path);
}

void sync_directory(const std::filesystem::path& path) { sync_with(fsync, path, O_DIRECTORY); }

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : ".";
}

bool is_lock_file(const std::string& name) {
  return name.size() > 1 + kLockSuffix.size() && name.front() == '.' && name.ends_with(kLockSuffix);
}

}  // namespace

void throw_system_error(const std::string& action, const std::filesystem::path& path) {
  const int reason = errno;
  throw std::runtime_error("cannot " + action + " " + path.string() + ": " + std::strerror(reason));
}

void sync_file(const std::filesystem::path& path) { sync_with(fsync, path, 0); }

void sync_file_system(const std::filesystem::path& path) { sync_with(syncfs, path, 0); }

void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to) {
  std::filesystem::rename(from, to);
  sync_directory(folder_of(to));
}

std::filesystem::path publish_folder(const std::filesystem::path& from,
                                     const std::filesystem::path& to) {
  std::filesystem::path old = from;
  sync_directory(from);
  if (std::filesystem::symlink_status(to).type() == std::filesystem::file_type::not_found) {
    rename_durably(from, to);
    return {};
  }
  if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) != 0) {
    if (errno != EINVAL && errno != ENOSYS)
      throw_system_error("swap " + from.string() + " with", to);
    // NFS and some other file systems can rename but not swap.
    old = replaced_of(to);
    std::filesystem::rename(to, old);  // fails if `old` exists and is not empty
    try {
      std::filesystem::rename(from, to);
    } catch (...) {
      std::error_code ignored;
      std::filesystem::rename(old, to, ignored);
      throw;
    }
  }
  sync_directory(folder_of(to));
  return old;
}

std::filesystem::path replaced_of(const std::filesystem::path& to) {
  return temporary_of(to.string() + std::string(kReplacedSuffix));
}

std::filesystem::path existing_folder(std::filesystem::path path) {
  path = std::filesystem::absolute(path);
  while (!std::filesystem::exists(path)) path = path.parent_path();
  if (!std::filesystem::is_directory(path))
    throw UserError(path.string() + ": is a file, expected a folder");
  return path;
}

std::string list_folder(const std::filesystem::path& folder) {
  constexpr size_t kMost = 20;
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (std::string name = entry.path().filename(); !is_lock_file(name))
      names.push_back(std::move(name));
  std::sort(names.begin(), names.end());
  std::string text;
  for (size_t i = 0; i < std::min(kMost, names.size()); ++i)
    text += (text.empty() ? "" : ", ") + printable(names[i]);
  if (names.size() > kMost) text += ", ... (" + std::to_string(names.size()) + " in all)";
  return text.empty() ? "nothing" : text;
}

std::string list_parent(const std::filesystem::path& absent) {
  const std::filesystem::path parent =
      std::filesystem::absolute(absent).lexically_normal().parent_path();
  const bool is_hub_id = absent.is_relative() && std::distance(absent.begin(), absent.end()) == 2 &&
                         *absent.begin() != "." && *absent.begin() != "..";
  if (!std::filesystem::is_directory(parent))
    return !is_hub_id ? ""
                      : "; if it is a model of the hub, download it first: hf download " +
                            absent.string() + " --local-dir " + absent.filename().string();
  return "; " + parent.string() + " holds: " + list_folder(parent);
}

std::filesystem::path temporary_of(const std::filesystem::path& path) {
  return path.string() + std::string(kTemporarySuffix);
}

NewFile::NewFile(std::filesystem::path to) : to_(std::move(to)) {
  remove_unfinished(folder_of(to_),
                    [this](const std::filesystem::path& name) { return name == to_.filename(); });
  std::random_device random;
  for (struct stat status{}; status.st_nlink == 0;) {  // else somebody has just removed it
    if (descriptor_ >= 0) close(descriptor_);
    path_ = temporary_of(to_.string() + string_printf(".%0*x", kDigits, random()));
    descriptor_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (descriptor_ < 0 && errno == EEXIST) continue;
    if (descriptor_ < 0) throw_system_error("create", path_);
    // Fails where there are no locks, and then nobody removes the file.
    if (flock(descriptor_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK)
      fstat(descriptor_, &status);
  }
}

NewFile::~NewFile() {
  if (descriptor_ < 0) return;
  unlink(path_.c_str());
  close(descriptor_);
}

void NewFile::publish() {
  sync_file(path_);
  rename_durably(path_, to_);
  close(std::exchange(descriptor_, -1));
}

void remove_unfinished(const std::filesystem::path& folder,
                       const std::function<bool(const std::filesystem::path& name)>& is_ours) {
  std::error_code unreadable;
  for (const auto& entry : std::filesystem::directory_iterator(folder, unreadable)) {
    const auto name = made_beside(entry.path().filename());
    if (!name || !is_ours(*name)) continue;
    const int file = open(entry.path().c_str(), O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (file < 0) continue;
    struct stat status {};
    fstat(file, &status);
    if (S_ISREG(status.st_mode) && status.st_nlink == 1 && flock(file, LOCK_EX | LOCK_NB) == 0)
      unlink(entry.path().c_str());
    close(file);
  }
}

std::optional<std::filesystem::path> made_beside(const std::filesystem::path& temporary) {
  const std::string text = temporary.string();
  const size_t added = 1 + kDigits + kTemporarySuffix.size();
  if (text.size() <= added || !text.ends_with(kTemporarySuffix)) return std::nullopt;
  const std::string digits = text.substr(text.size() - added, 1 + kDigits);
  if (digits[0] != '.' || digits.find_first_not_of("0123456789abcdef", 1) != std::string::npos)
    return std::nullopt;
  return text.substr(0, text.size() - added);
}

void write_text_atomically(const std::filesystem::path& path, std::string_view text) {
  NewFile file(path);
  DirectFile(file.path(), text.size()).write(0, std::as_bytes(std::span(text)));
  file.publish();
}

std::string read_text(const std::filesystem::path& path, uint64_t most) {
  const File file(path);
  if (file.size() > most) {
    throw DamagedFile(path.string() + ": expected a text of at most " + std::to_string(most) +
                      " bytes, found " + std::to_string(file.size()));
  }
  std::string text(file.size(), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

std::string host_name() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

}  // namespace anymesh
