#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "framework/data/tokenizers/byte_trie.h"
#include "framework/data/tokenizers/json_node.h"
#include "framework/data/tokenizers/normalizer.h"
#include "framework/data/tokenizers/vocabulary.h"

namespace anymesh {

// A token that is found in the text itself, before the model sees it: <|endoftext|>, say.
struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool single_word = false;      // not beside a word character
  bool lstrip = false;           // takes the white space before it too
  bool rstrip = false;           // and that behind it
  bool normalized = false;       // is looked for in the normalized text
  std::string normal = content;  // what is looked for
};

// A part of a text: an added token, or with id -1 the text between two of them.
struct Section {
  std::string_view text;
  int32_t id;
};

// Finds added tokens. At each place, the longest one counts.
class AddedTokens {
 public:
  void add(AddedToken token);

  // Appends the sections of a text. `normalized` chooses the tokens that are looked for.
  void split(std::string_view text, bool normalized, std::vector<Section>& sections) const;

  const std::vector<AddedToken>& all() const { return tokens_; }

 private:
  struct Finder {
    ByteTrie trie;
    std::array<bool, 256> begins = {};  // a token begins with this byte
  };

  std::vector<AddedToken> tokens_;
  std::array<Finder, 2> finders_;  // by `normalized`
};

// Reads "added_tokens", and adds those that the model lacks to the vocabulary. Throws a DamagedFile
// where an id is not the one that the tokenizers package would give the token.
AddedTokens read_added_tokens(const JsonNode& node, const Normalizer* normalizer,
                              Vocabulary& vocabulary);

}  // namespace anymesh
