#pragma once

#include <cstdint>
#include <filesystem>

namespace anymesh {

// A disk that fails, for tests that link failing_calls.cpp. That file stands before the system's
// calls that make, write, sync and rename files. While the object lives, call number `at`, counted
// from 0, of those below `folder` fails with `reason` (ENOSPC, EIO, ...), and no other. With kKill
// the process is killed before that call, and calls that remove files are counted too.
class FailingCall {
 public:
  static constexpr int kKill = 0;
  static inline bool cannot_swap = false;  // the file system cannot swap two folders

  FailingCall(const std::filesystem::path& folder, int64_t at, int reason);
  ~FailingCall();
  FailingCall(const FailingCall&) = delete;
  FailingCall& operator=(const FailingCall&) = delete;

  bool met() const;  // there were as many calls as `at` needs
};

}  // namespace anymesh
