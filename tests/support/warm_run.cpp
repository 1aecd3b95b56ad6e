// Asks a warm_trainer for a run (warm_start.h).
#include <unistd.h>

#include <cstdio>
#include <filesystem>

#include "tests/support/warm_start.h"

namespace anymesh {
namespace {

int connect_to(const std::string& path) {
  const sockaddr_un address = socket_address(path);
  const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  for (int tries = 0; tries < 3000; ++tries) {  // 30 s, for the server's start
    if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return fd;
    usleep(10'000);
  }
  throw std::runtime_error("no warm_trainer at " + path);
}

// Words of the request, each with a 0 at its end: the folder, flags, an empty word, environment.
std::string request(char** flags, char** environment) {
  std::string text = std::filesystem::current_path().string() + '\0';
  for (; *flags; ++flags) text += "=" + std::string(*flags) + '\0';  // a flag may be empty
  text += '\0';
  for (; *environment; ++environment) text += std::string(*environment) + '\0';
  return text;
}

int run(const std::string& path, char** flags, char** environment) {
  const int fd = connect_to(path);
  const std::string text = request(flags, environment);
  StreamsMessage message;
  message.size = text.size();
  cmsghdr* streams = CMSG_FIRSTHDR(&message.header);
  streams->cmsg_level = SOL_SOCKET;
  streams->cmsg_type = SCM_RIGHTS;
  streams->cmsg_len = CMSG_LEN(3 * sizeof(int));
  const int fds[] = {0, 1, 2};
  std::memcpy(CMSG_DATA(streams), fds, sizeof(fds));
  if (sendmsg(fd, &message.header, 0) != sizeof(message.size) ||
      send(fd, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size()))
    throw std::runtime_error("cannot send the request");
  int status = 0;
  if (recv(fd, &status, sizeof(status), MSG_WAITALL) != sizeof(status))
    throw std::runtime_error("the warm_trainer has ended");
  return status;
}

}  // namespace
}  // namespace anymesh

int main(int argc, char** argv, char** environment) {
  try {
    if (argc < 2) throw std::runtime_error("usage: warm_run SOCKET FLAGS...");
    return anymesh::run(argv[1], argv + 2, environment);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "warm_run: %s\n", error.what());
    return 125;
  }
}
