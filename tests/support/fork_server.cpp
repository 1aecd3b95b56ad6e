// The server of fork_server.h. Linked with a program whose main is called program_main.
#include "tests/support/fork_server.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

int program_main(int argc, char** argv);

namespace {

using anymesh::fork_server::Request;

struct Client {
  int socket = -1;
  pid_t copy = 0;  // 0: nothing asked for yet
};

[[noreturn]] void fail(const char* what) {
  std::perror(what);
  std::exit(1);
}

// Empty where the client left. `streams` are the client's.
Request received(int socket, int (&streams)[3]) {
  std::string bytes(anymesh::fork_server::kLongestRequest, '\0');
  anymesh::fork_server::Packet packet(bytes);
  const ssize_t got = recvmsg(socket, &packet.message, 0);
  const cmsghdr* rights = got > 0 ? CMSG_FIRSTHDR(&packet.message) : nullptr;
  if (!rights || rights->cmsg_len != CMSG_LEN(sizeof streams)) return {};
  std::memcpy(streams, CMSG_DATA(rights), sizeof streams);
  bytes.resize(static_cast<size_t>(got));
  return anymesh::fork_server::unpacked(bytes);
}

[[noreturn]] void become(const Request& request, const int (&streams)[3], const sigset_t& signals) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  sigprocmask(SIG_SETMASK, &signals, nullptr);
  for (int fd = 0; fd < 3; ++fd) dup2(streams[fd], fd);
  close_range(3, ~0U, 0);
  if (chdir(request.at(0).c_str()) != 0) fail(request[0].c_str());
  const size_t argc = std::stoul(request.at(1));
  std::vector<char*> words;
  for (size_t i = 2; i < request.size(); ++i)
    words.push_back(const_cast<char*>(request[i].c_str()));
  clearenv();
  std::for_each(words.begin() + argc, words.end(), putenv);
  words.resize(argc);
  words.push_back(nullptr);
  const int status = program_main(static_cast<int>(argc), words.data());
  std::fflush(nullptr);
  std::_Exit(status);
}

void answer(int socket, int value) { send(socket, &value, sizeof value, MSG_NOSIGNAL); }

// False where the client is to be forgotten.
bool served(Client& client, const sigset_t& signals) {
  int streams[3];
  const Request request = received(client.socket, streams);
  if (request.empty()) {
    if (client.copy > 0) kill(client.copy, SIGKILL);
    return false;
  }
  client.copy = fork();
  if (client.copy == 0) become(request, streams, signals);
  for (int fd : streams) close(fd);
  answer(client.socket, client.copy);
  return client.copy > 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) fail("usage: fork_server SOCKET");
  sigset_t children, signals;
  sigemptyset(&children);
  sigaddset(&children, SIGCHLD);
  sigprocmask(SIG_BLOCK, &children, &signals);
  const int ended = signalfd(-1, &children, SFD_CLOEXEC | SFD_NONBLOCK);
  const int door = socket(AF_UNIX, SOCK_SEQPACKET, 0);
  sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = {}};
  std::strncpy(address.sun_path, argv[1], sizeof address.sun_path - 1);
  if (bind(door, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      listen(door, 64) != 0)
    fail(argv[1]);
  std::vector<Client> clients;
  while (true) {
    std::vector<pollfd> events = {{door, POLLIN, 0}, {ended, POLLIN, 0}};
    for (const Client& client : clients) events.push_back({client.socket, POLLIN, 0});
    if (poll(events.data(), events.size(), -1) < 0) fail("poll");
    for (size_t i = clients.size(); i-- > 0;) {
      if (events[i + 2].revents && !served(clients[i], signals)) {
        close(clients[i].socket);
        clients.erase(clients.begin() + i);
      }
    }
    if (events[1].revents) {
      signalfd_siginfo info;
      while (read(ended, &info, sizeof info) > 0) {
      }
      int status;
      for (pid_t copy; (copy = waitpid(-1, &status, WNOHANG)) > 0;) {
        const auto client = std::find_if(clients.begin(), clients.end(),
                                         [&](const Client& c) { return c.copy == copy; });
        if (client == clients.end()) continue;
        answer(client->socket, status);
        client->copy = 0;
      }
    }
    if (events[0].revents) clients.push_back({.socket = accept(door, nullptr, nullptr)});
  }
}
