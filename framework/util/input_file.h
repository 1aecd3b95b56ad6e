#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <istream>
#include <new>
#include <streambuf>
#include <string>
#include <string_view>

#include "framework/util/errors.h"

namespace anymesh {

// All files are opened for reading here. A file must be a regular one, and opening never waits, as
// open() does on a FIFO without a writer.
//
//   InputFile in("losses.csv");                       // a std::istream
//   const std::string text = read_file("vocab.json");
//   const int descriptor = open_to_read("model.pt");  // for pread and mmap
//
// InputFile also reads a pipe if the path says that it is one: /dev/stdin, or the /dev/fd/63 that a
// shell makes of <(zcat a.csv.gz). open_to_read() does not by default, because its callers need a
// size. A folder, a FIFO, a socket, a device and a git-lfs pointer are refused, each with its own
// message.

// Calls a reader. Throws Unreadable with the file's name if memory runs out.
template <class Read>
auto naming_memory(const std::filesystem::path& path, Read read) {
  try {
    return read();
  } catch (const std::bad_alloc&) {
    throw Unreadable(path.string() + ": not enough memory to read it");
  }
}

[[noreturn]] inline void throw_cannot_open(const std::filesystem::path& path, int reason) {
  const std::string text = path.string() + ": cannot open: " + std::strerror(reason);
  if (reason == EMFILE) throw Unreadable(text + " (raise the limit with `ulimit -n`)");
  for (const int not_damage : {EACCES, EPERM, ENFILE, ENOMEM, ESTALE})
    if (reason == not_damage) throw Unreadable(text);
  throw DamagedFile(text);
}

// Returns why the descriptor is not a file, such as "is a folder, expected a file"; "" for a file.
inline std::string what_is_no_file(int descriptor, const struct stat& status) {
  switch (status.st_mode & S_IFMT) {
    case S_IFDIR:
      return "is a folder, expected a file";
    case S_IFIFO:
      return "is a FIFO, expected a file";
    case S_IFSOCK:
      return "is a socket, expected a file";
    case S_IFREG:
      break;
    default:
      return "is a device, expected a file";
  }
  constexpr std::string_view kPointer = "version https://git-lfs.github.com/spec/";
  char start[kPointer.size()];
  if (status.st_size < 1024 && pread(descriptor, start, sizeof start, 0) == sizeof start &&
      std::string_view(start, sizeof start) == kPointer)
    return "is a git-lfs pointer and not the file itself: run `git lfs pull` where it was cloned";
  return "";
}

inline int open_to_read(const std::filesystem::path& path, bool pipes = false) {
  struct stat status {};
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  const int reason = errno;
  if (descriptor < 0 && reason == ENXIO && stat(path.c_str(), &status) == 0)
    throw DamagedFile(path.string() + ": " + what_is_no_file(descriptor, status));
  if (descriptor < 0) throw_cannot_open(path, reason);
  std::string problem = "cannot be looked at";
  if (fstat(descriptor, &status) == 0) problem = what_is_no_file(descriptor, status);
  const std::string& name = path.native();
  const bool is_pipe = S_ISFIFO(status.st_mode) || S_ISCHR(status.st_mode);
  if (pipes && is_pipe && (name == "/dev/stdin" || name.starts_with("/dev/fd/"))) {
    fcntl(descriptor, F_SETFL, O_RDONLY);  // reads wait for a pipe's next bytes
    return descriptor;
  }
  if (problem.empty()) return descriptor;
  close(descriptor);
  throw DamagedFile(path.string() + ": " + problem);
}

class InputFile : public std::istream {
 public:
  explicit InputFile(const std::filesystem::path& path)
      : std::istream(nullptr), buffer_(open_to_read(path, /*pipes=*/true)) {
    rdbuf(&buffer_);
  }

 private:
  // Owns a descriptor, and reads it from where it is to the end.
  class Buffer : public std::streambuf {
   public:
    explicit Buffer(int descriptor) : descriptor_(descriptor) {}
    ~Buffer() override { close(descriptor_); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

   protected:
    int_type underflow() override {
      ssize_t size = 0;
      while ((size = ::read(descriptor_, block_, sizeof block_)) < 0 && errno == EINTR) continue;
      if (size < 0) throw std::ios::failure(std::strerror(errno));  // as libstdc++'s: badbit
      setg(block_, block_, block_ + size);
      return size == 0 ? traits_type::eof() : traits_type::to_int_type(*block_);
    }

   private:
    int descriptor_;
    char block_[1 << 14];
  };

  Buffer buffer_;
};

inline std::string read_file(const std::filesystem::path& path) {
  return naming_memory(path, [&] {
    InputFile file(path);
    std::string text;
    char block[1 << 16];
    while (const auto size = file.rdbuf()->sgetn(block, sizeof block))
      text.append(block, static_cast<size_t>(size));
    return text;
  });
}

}  // namespace anymesh
