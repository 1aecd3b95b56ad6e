#pragma once

#include <array>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "framework/data/tokenizers/byte_trie.h"
#include "framework/data/tokenizers/json_node.h"
#include "framework/data/tokenizers/package_settings.h"
#include "framework/data/tokenizers/token_model.h"
#include "framework/data/tokenizers/tokenizer.h"
#include "framework/data/tokenizers/vocabulary.h"

namespace anymesh {

// A tokenizer of exchangeable parts, those of a tokenizer.json. A text goes through them in this
// order; each may be absent, except the model:
//
//   added_tokens     are found, and become their ids
//   normalizer       rewrites the text between them
//   pre_tokenizers   cut it into pieces
//   model            turns each piece into ids (token_model.h)
//
// and ids become text through the vocabulary and the decoder. The functions read_...() take a part
// of a tokenizer.json, and throw a UserError for a type that is not supported.

// Rewrites a valid UTF-8 text in place. `at_start` says whether the text's first character is the
// document's first, and stays so unless that one is removed.
using Normalizer = std::function<void(std::string& text, bool& at_start)>;

// Returns none for null.
Normalizer read_normalizer(const JsonNode& node);

// Returns the replacements of a SentencePiece model in a normalizer's precompiled_charsmap.
std::function<std::string(std::string_view)> read_precompiled_map(const JsonNode& node);

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
  int32_t add(AddedToken token, const JsonNode& origin, const Normalizer& normalizer,
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

// Reads "added_tokens", and adds those that the model lacks to the vocabulary. Throws a DamagedFile
// where an id is not the one that the tokenizers package would give the token.
AddedTokens read_added_tokens(const JsonNode& node, const Normalizer& normalizer,
                              Vocabulary& vocabulary);

// A text in pieces, none of them empty.
struct Pieces {
  std::vector<std::string_view> views;
  std::deque<std::string> owned;   // what views may point into, beside the text itself
  const char* document = nullptr;  // where the view at the document's start begins; null: none does
  size_t bytes = 0;                // of the text
};

// Splits text into the pieces that the model reads one by one, and may rewrite them.
using PreTokenizer = std::function<void(Pieces& pieces)>;

struct PreTokenizers {
  std::vector<PreTokenizer> steps;  // one after the other
  // The last step would spell bytes as ByteLevel does. It is left out: the model reads the bytes.
  bool bytes = false;
};

// With `prefix_space`, that goes before each ByteLevel's add_prefix_space.
PreTokenizers read_pre_tokenizers(const JsonNode& node, std::optional<bool> prefix_space = {});

// Splits as GPT-2 does, and keeps bytes that are no UTF-8.
void split_gpt2_words(Pieces& pieces);
// Takes what an expression of PCRE2 matches, and drops the rest.
PreTokenizer take_matches(const std::string& expression);

// Turns tokens into the parts of a text.
using Decoder = std::function<void(std::vector<std::string>& parts)>;

// Returns none for null: then a space stands between the tokens. Bytes that are no UTF-8 in the end
// stay as they are, since tokens that follow may complete them.
Decoder read_decoder(const JsonNode& node);

// The decoder ByteLevel: tokens spell bytes.
void decode_spelled_bytes(std::vector<std::string>& parts);

struct TokenizerParts {
  Vocabulary vocabulary;
  AddedTokens added_tokens;
  Normalizer normalizer;
  std::vector<PreTokenizer> pre_tokenizers;
  std::unique_ptr<TokenModel> model;
  Decoder decoder;
  bool any_bytes = false;  // the parts take bytes that are no UTF-8; else U+FFFD stands for each
  int32_t eod = 0, bos = 0;
  AroundText around;
  std::vector<int32_t> text_ends;
};

// Models may refer to the vocabulary, so the parts stay where they are.
std::unique_ptr<Tokenizer> make_pipeline_tokenizer(std::unique_ptr<TokenizerParts> parts);

}  // namespace anymesh
