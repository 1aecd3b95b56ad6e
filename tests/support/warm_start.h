// A trainer that starts in 10 ms instead of half a second. `warm_trainer SOCKET` has loaded
// LibTorch, and forks for every `warm_run SOCKET FLAGS...`, which takes the place of `pretrain_gpt
// FLAGS...` in scripts. The fork has the folder, environment, input and outputs of warm_run, and
// ends with it; warm_run has the fork's exit status.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

namespace anymesh {

inline sockaddr_un socket_address(const std::string& path) {
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  if (path.size() >= sizeof(address.sun_path)) throw std::runtime_error(path + " is too long");
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

// A message of the size of a request's text, with the file descriptors 0 to 2 beside it.
struct StreamsMessage {
  uint64_t size = 0;
  iovec part{&size, sizeof(size)};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(3 * sizeof(int))> control{};
  msghdr header{.msg_name = nullptr,
                .msg_namelen = 0,
                .msg_iov = &part,
                .msg_iovlen = 1,
                .msg_control = control.data(),
                .msg_controllen = control.size(),
                .msg_flags = 0};
};

}  // namespace anymesh
