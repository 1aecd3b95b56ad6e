#pragma once

namespace anymesh {

// The message of everything that a build without CUDA lacks.
inline constexpr const char* kNoCuda =
    "this build has no CUDA (cmake --preset cuda makes one that has)";

}  // namespace anymesh
