#pragma once

// Starting a program costs 0.5 s of a core where LibTorch is in it, most of it for its table of
// operators, and the run tests start some two thousand. fork_server is the program with all of that
// behind it, waiting before its main; fork_run, which links nothing, asks it for a copy that has
// fork_run's arguments, environment, working folder and three streams, and ends as the copy ends.
//
//   fork_server SOCKET &                        until it is killed, its copies with it
//   ANYMESH_FORK_SERVER=SOCKET fork_run ARGS... in place of pretrain_gpt ARGS...
//
// Request: one packet, the three streams as SCM_RIGHTS and the text of `Request`. Answers: the
// copy's process, as soon as there is one, and its wait status; each is an int.

#include <sys/socket.h>

#include <string>
#include <vector>

namespace anymesh::fork_server {

constexpr size_t kLongestRequest = 128 << 10;

// Strings without '\0', in this order, each with one behind it: the working folder, the number of
// arguments, the arguments, the environment.
using Request = std::vector<std::string>;

inline std::string packed(const Request& request) {
  std::string bytes;
  for (const std::string& text : request) bytes.append(text).push_back('\0');
  return bytes;
}

inline Request unpacked(const std::string& bytes) {
  Request request;
  for (size_t at = 0; at < bytes.size(); at += request.back().size() + 1)
    request.emplace_back(bytes.c_str() + at);
  return request;
}

// A message of `bytes`, which outlives it, and three streams.
struct Packet {
  explicit Packet(std::string& bytes) : text{bytes.data(), bytes.size()} {
    message.msg_iov = &text;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
  }
  Packet(const Packet&) = delete;

  alignas(cmsghdr) char control[CMSG_SPACE(3 * sizeof(int))] = {};
  iovec text;
  msghdr message = {};
};

}  // namespace anymesh::fork_server
