// The client of fork_server.h.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/support/fork_server.h"

namespace {

volatile sig_atomic_t copy = 0;  // its process

void pass_on(int signal) {
  if (copy > 0) kill(copy, signal);
}

[[noreturn]] void fail(const char* what) {
  std::perror(what);
  std::_Exit(125);
}

int connected(const char* path) {
  const int socket = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = {}};
  std::strncpy(address.sun_path, path, sizeof address.sun_path - 1);
  if (connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    fail("fork_run: ANYMESH_FORK_SERVER");
  return socket;
}

void send(int socket, std::string bytes) {
  if (bytes.size() > anymesh::fork_server::kLongestRequest) {
    std::fprintf(stderr, "fork_run: arguments and environment of %zu bytes, expected at most %zu\n",
                 bytes.size(), anymesh::fork_server::kLongestRequest);
    std::_Exit(125);
  }
  anymesh::fork_server::Packet packet(bytes);
  cmsghdr* streams = CMSG_FIRSTHDR(&packet.message);
  streams->cmsg_level = SOL_SOCKET;
  streams->cmsg_type = SCM_RIGHTS;
  streams->cmsg_len = CMSG_LEN(3 * sizeof(int));
  const int fds[3] = {0, 1, 2};
  std::memcpy(CMSG_DATA(streams), fds, sizeof fds);
  if (sendmsg(socket, &packet.message, 0) < 0) fail("fork_run: request");
}

int answer(int socket) {
  int value = 0;
  ssize_t got;
  while ((got = recv(socket, &value, sizeof value, 0)) < 0 && errno == EINTR) {
  }
  if (got != sizeof value) fail("fork_run: the server is gone");
  return value;
}

}  // namespace

int main(int argc, char** argv) {
  const char* path = std::getenv("ANYMESH_FORK_SERVER");
  if (!path) fail("fork_run: ANYMESH_FORK_SERVER is not set");
  anymesh::fork_server::Request request = {get_current_dir_name(), std::to_string(argc)};
  request.insert(request.end(), argv, argv + argc);
  for (char** variable = environ; *variable; ++variable) request.emplace_back(*variable);
  const int socket = connected(path);
  send(socket, anymesh::fork_server::packed(request));
  copy = answer(socket);  // a signal before this ends both
  for (int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2}) std::signal(signal, pass_on);
  const int status = answer(socket);
  if (WIFEXITED(status)) std::_Exit(WEXITSTATUS(status));
  std::signal(WTERMSIG(status), SIG_DFL);
  raise(WTERMSIG(status));
  std::_Exit(128 + WTERMSIG(status));
}
