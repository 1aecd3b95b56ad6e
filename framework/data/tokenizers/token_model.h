#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "framework/data/tokenizers/json_node.h"
#include "framework/data/tokenizers/vocabulary.h"

namespace anymesh {

// Turns one piece of text into ids: BPE or Unigram. One object serves one thread.
class TokenModel {
 public:
  virtual ~TokenModel() = default;
  virtual void encode(std::string_view piece, std::vector<int32_t>& ids) = 0;
};

// Reads the "model" of a tokenizer.json, and its tokens into `vocabulary`. A "vocab" that is an
// object comes as its text, `vocab`: a JsonFile takes seconds for a million members. With `bytes`,
// pieces are bytes that the tokens spell (characters.h). Throws a UserError for a type that is not
// supported.
std::unique_ptr<TokenModel> read_token_model(const JsonNode& node, std::string_view vocab,
                                             bool bytes, Vocabulary& vocabulary);

}  // namespace anymesh
