#pragma once

#include <algorithm>
#include <cstddef>

namespace anymesh {

// Moves `size` bytes, in pieces of at most `piece`, through two halves of a buffer. One half is
// written while the other is read:
//
//   start(at, n, half)    begins to write piece [at, at + n) to the half, 0 or 1
//   finish(at, n, half)   waits for that, and reads it
//
// Each piece is started before the one before it is finished. A half is reused only after its last
// piece is finished.
template <class Start, class Finish>
void in_two_halves(size_t size, size_t piece, const Start& start, const Finish& finish) {
  const auto call = [&](const auto& step, size_t at) {
    if (at < size) step(at, std::min(piece, size - at), at / piece % 2);
  };
  call(start, 0);
  for (size_t at = 0; at < size; at += piece) {
    call(start, at + piece);
    call(finish, at);
  }
}

}  // namespace anymesh
