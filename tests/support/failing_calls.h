#pragma once

#include <cstdint>
#include <filesystem>

namespace anymesh {

// A disk that fails, for tests that link failing_calls.cpp. That file stands before the system's
// calls that make, write, sync and rename files. While the object lives, call number `at`, counted
// from 0, of those below `folder` fails with `reason` (ENOSPC, EIO, ...), and no other.
class FailingCall {
 public:
  FailingCall(const std::filesystem::path& folder, int64_t at, int reason);
  ~FailingCall();
  FailingCall(const FailingCall&) = delete;
  FailingCall& operator=(const FailingCall&) = delete;

  bool met() const;  // there were as many calls as `at` needs
};

}  // namespace anymesh
