#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "framework/data/tokenizers/json_node.h"

namespace anymesh {

// A text in pieces, none of them empty.
struct Pieces {
  std::vector<std::string_view> views;
  std::deque<std::string> owned;   // what views may point into, beside the text itself
  const char* document = nullptr;  // where the view at the document's start begins; null: none does
  size_t bytes = 0;                // of the text
};

// The "pre_tokenizer" of a tokenizer.json: splits text into the pieces that the model reads one by
// one, and may rewrite them.
class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  virtual void split(Pieces& pieces) const = 0;
};

struct PreTokenizers {
  std::vector<std::unique_ptr<PreTokenizer>> steps;  // one after the other
  // The last step would spell bytes as ByteLevel does. It is left out: the model reads the bytes.
  bool bytes = false;
};

// With `prefix_space`, that goes before each ByteLevel's add_prefix_space. Throws a UserError for a
// type that is not supported.
PreTokenizers read_pre_tokenizers(const JsonNode& node, std::optional<bool> prefix_space = {});

// Splits as GPT-2 does, and keeps bytes that are no UTF-8.
std::unique_ptr<PreTokenizer> gpt2_pre_tokenizer();
// Takes what an expression of PCRE2 matches, and drops the rest.
std::unique_ptr<PreTokenizer> matches_pre_tokenizer(const std::string& expression);

}  // namespace anymesh
