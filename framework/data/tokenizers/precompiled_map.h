#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "framework/data/tokenizers/json_node.h"

namespace anymesh {

// The replacements of a SentencePiece model, as its `precompiled_charsmap` has them in base64: the
// size of a double-array trie in bytes, the trie, and the replacements, each ended by a zero. The
// trie maps a text to where its replacement begins.
//
// A grapheme of less than 6 bytes is replaced as a whole if the trie has a prefix of it; else each
// of its characters is.
class PrecompiledMap {
 public:
  explicit PrecompiledMap(const JsonNode& node);
  std::string apply(std::string_view text) const;

 private:
  std::optional<std::string_view> replacement(std::string_view text) const;

  std::vector<uint32_t> trie_;
  std::string replacements_;
};

}  // namespace anymesh
