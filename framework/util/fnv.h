#pragma once

#include <cstdint>
#include <string_view>

namespace anymesh {

// The FNV-1a hash: of a text, or of one number after another.
inline constexpr uint64_t kFnvStart = 0xCBF29CE484222325;

constexpr uint64_t fnv_next(uint64_t hash, uint64_t number) {
  return (hash ^ number) * 0x100000001B3;
}

constexpr uint64_t fnv(std::string_view text, uint64_t hash = kFnvStart) {
  for (const char c : text) hash = fnv_next(hash, static_cast<unsigned char>(c));
  return hash;
}

}  // namespace anymesh
