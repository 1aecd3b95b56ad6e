#include "framework/util/parallel_for.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace anymesh {

void parallel_for(size_t count, int threads, const std::function<void(size_t)>& fn) {
  std::atomic<size_t> next{0};
  std::exception_ptr failure;
  size_t failed = count;
  std::mutex mutex;
  const auto work = [&] {
    for (size_t i; (i = next++) < count;) {
      try {
        fn(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (i < failed) {
          failed = i;
          failure = std::current_exception();
        }
        next = count;
      }
    }
  };
  {
    std::vector<std::jthread> helpers;
    for (size_t t = 1; t < std::min<size_t>(static_cast<size_t>(std::max(threads, 1)), count); ++t)
      try {
        helpers.emplace_back(work);
      } catch (const std::system_error&) {  // the system allows no more threads
        break;
      }
    work();
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace anymesh
