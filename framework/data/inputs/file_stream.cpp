#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "framework/data/inputs/byte_stream.h"
#include "framework/util/errors.h"
#include "framework/util/input_file.h"

namespace anymesh {
namespace {

constexpr size_t kFileBufferBytes = 256 << 10;

int open_stream(const std::string& path) {
  const bool standard = path == "-";
  if (!standard && !std::filesystem::is_fifo(path)) return open_to_read(path, /*pipes=*/true);
  const int descriptor =
      standard ? fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0) : open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) throw_cannot_open(input_name(path), errno);
  return descriptor;
}

}  // namespace

FileStream::FileStream(const std::string& path)
    : name_(input_name(path)), descriptor_(open_stream(path)), buffer_(kFileBufferBytes) {}

FileStream::~FileStream() { close(descriptor_); }

std::string_view FileStream::read() {
  ssize_t count = 0;
  do count = ::read(descriptor_, buffer_.data(), buffer_.size());
  while (count < 0 && errno == EINTR);
  if (count < 0) throw_error<Unreadable>(name_, ": cannot read: ", std::strerror(errno));
  file_bytes_ += count;
  return {buffer_.data(), static_cast<size_t>(count)};
}

}  // namespace anymesh
