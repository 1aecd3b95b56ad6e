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
  bool special = false;          // is text like any other if special tokens are split
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
  // Adds a token as the tokenizers package does, and returns its id: the vocabulary's, else the
  // next one. The last flags of a text count, but special it stays. Errors name `origin`.
  int32_t add(AddedToken token, const JsonNode& origin, const Normalizer* normalizer,
              Vocabulary& vocabulary);

  // Special tokens in a text are text from now on.
  void split_special() { split_special_ = true; }

  // Appends the sections of a text. `normalized` chooses the tokens that are looked for.
  void split(std::string_view text, bool normalized, std::vector<Section>& sections) const;

  const std::vector<AddedToken>& all() const { return tokens_; }
  // Returns the index of a token in all(), or SIZE_MAX.
  size_t find(const std::string& content) const {
    const auto found = indices_.find(content);
    return found == indices_.end() ? SIZE_MAX : found->second;
  }

 private:
  struct Finder {
    ByteTrie trie;
    std::array<bool, 256> begins = {};  // a token begins with this byte
  };

  void find_by(const AddedToken& token, size_t index);

  std::vector<AddedToken> tokens_;
  StringMap<size_t> indices_;      // of tokens_, by content
  std::array<Finder, 2> finders_;  // by `normalized`
  int32_t next_ = -1;              // the id of a token that the vocabulary lacks
  bool split_special_ = false;
};

// Reads a token: a text, which is special, or an object with a "content" and flags. `special` says
// that it is, whatever its flag.
AddedToken read_added_token(const JsonNode& node, bool special = false);

// Reads "added_tokens", and adds those that the model lacks to the vocabulary. Throws a DamagedFile
// where an id is not the one that the tokenizers package would give the token.
AddedTokens read_added_tokens(const JsonNode& node, const Normalizer* normalizer,
                              Vocabulary& vocabulary);

}  // namespace anymesh
