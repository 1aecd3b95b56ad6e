#pragma once

#include <cstddef>
#include <functional>

namespace anymesh {

// Calls fn(i) for i in [0, count) from `threads` threads. Stops at an exception and rethrows the
// one of the lowest i, which does not depend on the number of threads.
void parallel_for(size_t count, int threads, const std::function<void(size_t)>& fn);

}  // namespace anymesh
