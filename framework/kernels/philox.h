#pragma once

#include <array>
#include <cstdint>

namespace anymesh {

// Philox4x32-10, the counter-based generator in Salmon et al., "Parallel random numbers: as easy as
// 1, 2, 3" (SC'11). Its 128 bits depend only on (counter, key), so any rank can make any element of
// any random tensor. Initial weights and dropout masks use it and so do not depend on the mesh.
using PhiloxBlock = std::array<uint32_t, 4>;

constexpr PhiloxBlock philox(PhiloxBlock counter, uint64_t key) {
  auto k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * counter[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ k0, static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return counter;
}

// The second counter word for a block of a stream; the first word is the block's low bits. Streams
// are below 2^24, blocks below 2^40.
constexpr uint32_t stream_word(uint32_t stream, int64_t block) {
  return stream + (static_cast<uint32_t>(block >> 32) << 24);
}

}  // namespace anymesh
