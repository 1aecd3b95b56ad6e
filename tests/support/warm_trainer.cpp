// The trainer's process that forks for every run (warm_start.h). It ends with the process that
// started it.
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "tests/support/warm_start.h"

#define main pretrain_gpt_main
#include "pretrain_gpt.cpp"
#undef main

namespace anymesh {
namespace {

void need(bool holds, const char* what) {
  if (holds) return;
  std::perror(what);
  std::_Exit(125);
}

std::string receive(int client) {
  StreamsMessage message;
  need(recvmsg(client, &message.header, MSG_WAITALL) == sizeof(message.size), "recvmsg");
  int fds[3];
  std::memcpy(fds, CMSG_DATA(CMSG_FIRSTHDR(&message.header)), sizeof(fds));
  for (int stream = 0; stream < 3; ++stream) need(dup2(fds[stream], stream) == stream, "dup2");
  for (const int fd : fds) close(fd);
  std::string text(message.size, 0);
  need(recv(client, text.data(), text.size(), MSG_WAITALL) == std::ssize(text), "recv");
  return text;
}

int train(std::string& text) {
  char* word = text.data();
  const auto next = [&word] { return std::exchange(word, word + std::strlen(word) + 1); };
  need(chdir(next()) == 0, "chdir");
  std::string name = "pretrain_gpt";
  std::vector<char*> argv = {name.data()};
  while (*word) argv.push_back(next() + 1);
  next();
  clearenv();
  while (word < text.data() + text.size()) putenv(next());
  argv.push_back(nullptr);
  return pretrain_gpt_main(static_cast<int>(argv.size()) - 1, argv.data());
}

// Runs the trainer in a process of its own, which ends with the client.
[[noreturn]] void serve(int client) {
  std::string text = receive(client);
  const pid_t child = fork();
  need(child >= 0, "fork");
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(client);
    const int status = train(text);
    std::fflush(nullptr);
    std::_Exit(status);  // LibTorch's static destructors would take 0.2 s of each run
  }
  const int process = static_cast<int>(syscall(SYS_pidfd_open, child, 0));
  need(process >= 0, "pidfd_open");
  pollfd waits[] = {{.fd = process, .events = POLLIN, .revents = 0},
                    {.fd = client, .events = POLLIN, .revents = 0}};
  need(poll(waits, 2, -1) > 0, "poll");
  if (waits[0].revents == 0) std::_Exit(0);  // the client is gone
  int status = 0;
  need(waitpid(child, &status, 0) == child, "waitpid");
  status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  need(send(client, &status, sizeof(status), MSG_NOSIGNAL) == sizeof(status), "send");
  std::_Exit(0);
}

}  // namespace
}  // namespace anymesh

int main(int argc, char** argv) {
  using namespace anymesh;
  if (argc != 2) {
    std::fprintf(stderr, "usage: warm_trainer SOCKET\n");
    return 2;
  }
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  const sockaddr_un address = socket_address(argv[1]);
  const int server = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  need(bind(server, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0, argv[1]);
  need(listen(server, 64) == 0, "listen");
  while (true) {
    const int client = accept4(server, nullptr, nullptr, SOCK_CLOEXEC);
    need(client >= 0, "accept");
    const pid_t child = fork();
    need(child >= 0, "fork");
    if (child == 0) {
      close(server);
      serve(client);
    }
    close(client);
    while (waitpid(-1, nullptr, WNOHANG) > 0) {
    }
  }
}
