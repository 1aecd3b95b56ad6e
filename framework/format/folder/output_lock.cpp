#include "framework/format/folder/output_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <ctime>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string_view>
#include <thread>
#include <utility>

#include "framework/format/io/file_io.h"
#include "framework/util/errors.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFirstLine = "anymesh lock", kInside = ".anymesh";

// The lines of a lock file after the first.
struct Holder {
  std::string host;
  std::string boot;  // the kernel's boot id: equal ids mean the same machine
  pid_t process = 0;
  std::string who;  // "ds_to_universal, process 17 on HOST since 2026-01-31 12:00:00 UTC"
};

std::string boot_id() {
  std::string id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), id);
  return id;
}

Holder this_process() {
  std::array<char, 64> since{};
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  std::strftime(since.data(), since.size(), "%F %T UTC", gmtime_r(&now, &utc));
  const std::string host = host_name();
  return {host, boot_id(), getpid(),
          std::string(program_invocation_short_name) + ", process " + std::to_string(getpid()) +
              " on " + host + " since " + since.data()};
}

// Reads the text of an open lock file, which may be anyone's.
std::string read_start(int descriptor) {
  std::array<char, 1024> text;
  const ssize_t size = pread(descriptor, text.data(), text.size(), 0);
  std::string start(text.data(), static_cast<size_t>(std::max<ssize_t>(size, 0)));
  std::ranges::replace_if(
      start, [](char c) { return (c < ' ' && c != '\n') || c > '~'; }, '?');
  return start;
}

Holder parse_holder(const std::string& text) {
  std::istringstream lines(text);
  std::string first;
  Holder holder;
  std::getline(lines, first);
  std::getline(lines, holder.host);
  std::getline(lines, holder.boot);
  lines >> holder.process >> std::ws;
  std::getline(lines, holder.who);
  return holder;
}

// Whether the holder is neither this machine nor this machine before a restart (same host name,
// other boot id).
bool is_elsewhere(const Holder& holder) {
  return holder.host != host_name() && holder.boot != boot_id();
}

bool lives(const Holder& holder) {
  return holder.boot == boot_id() && holder.process > 0 &&
         (kill(holder.process, 0) == 0 || errno == EPERM);
}

// Returns the holder of a lock that is taken. Waits, because a new holder may not have written yet.
std::string writer_of(int descriptor) {
  for (int tries = 0; tries < 1000; ++tries) {
    if (const Holder holder = parse_holder(read_start(descriptor)); !holder.who.empty())
      return holder.who;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return "another process";
}

}  // namespace

OutputLock OutputLock::beside(const fs::path& output, const std::string& what) {
  const std::string name = "." + output.filename().string() + std::string(kLockSuffix);
  return {output.parent_path() / name, what + " " + output.string()};
}

OutputLock OutputLock::inside(const fs::path& folder, const std::string& what) {
  const std::string name = std::string(kInside) + std::string(kLockSuffix);
  return {folder / name, what + " " + folder.string()};
}

OutputLock::OutputLock(OutputLock&& other) noexcept
    : file_(std::move(other.file_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      owner_(other.owner_) {}

OutputLock::OutputLock(fs::path file, const std::string& what)
    : file_(std::move(file)), owner_(getpid()) {
  try {
    while (!take(what)) close(std::exchange(descriptor_, -1));
    write_holder();
  } catch (...) {
    if (descriptor_ >= 0) close(descriptor_);
    throw;
  }
}

bool OutputLock::take(const std::string& what) {
  descriptor_ = open(file_.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0666);
  if (descriptor_ < 0) throw_system_error("lock " + what + ": cannot open", file_);
  struct stat ours, named;
  if (fstat(descriptor_, &ours) != 0) throw_system_error("look at", file_);
  const std::string text = S_ISREG(ours.st_mode) ? read_start(descriptor_) : "";
  if (!S_ISREG(ours.st_mode) || ours.st_nlink > 1 ||
      (!text.empty() && !text.starts_with(kFirstLine))) {
    throw UserError(what + " cannot be locked: " + file_.string() +
                    " is no lock file of ours; remove it, or give another output");
  }
  const int reason = flock(descriptor_, LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
  const Holder holder = parse_holder(text);
  // On a file system without locks (ENOSYS and such), the lock is taken if that process lives.
  if (reason == EWOULDBLOCK || (reason != 0 && lives(holder))) {
    throw UserError(what + " is being written by " + writer_of(descriptor_) +
                    " (its lock: " + file_.string() + ")");
  }
  if (lstat(file_.c_str(), &named) != 0 || named.st_ino != ours.st_ino) return false;
  if (!text.empty() && is_elsewhere(holder)) {
    throw UserError(what + " is being written by " + holder.who +
                    ", or was when that ended: from here it cannot be told. If it runs "
                    "no more, remove " +
                    file_.string());
  }
  return true;
}

void OutputLock::write_holder() const {
  const Holder holder = this_process();
  const std::string text = std::string(kFirstLine) + "\n" + holder.host + "\n" + holder.boot +
                           "\n" + std::to_string(holder.process) + "\n" + holder.who + "\n";
  if (ftruncate(descriptor_, 0) != 0 ||
      pwrite(descriptor_, text.data(), text.size(), 0) != std::ssize(text))
    throw_system_error("write to", file_);
}

// Removes the file while it is locked. A process that has already opened it sees that its name is
// gone.
OutputLock::~OutputLock() {
  if (descriptor_ < 0) return;
  struct stat ours, named;
  if (owner_ == getpid() && fstat(descriptor_, &ours) == 0 && lstat(file_.c_str(), &named) == 0 &&
      ours.st_ino == named.st_ino)
    unlink(file_.c_str());
  close(descriptor_);
}

}  // namespace anymesh
