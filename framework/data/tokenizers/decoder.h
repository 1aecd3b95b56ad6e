#pragma once

#include <memory>
#include <string>
#include <vector>

#include "framework/data/tokenizers/json_node.h"

namespace anymesh {

// The "decoder" of a tokenizer.json: turns tokens into the parts of a text.
class Decoder {
 public:
  virtual ~Decoder() = default;
  virtual void apply(std::vector<std::string>& parts) const = 0;
};

// Returns null for null: then a space stands between the tokens. Bytes that are no UTF-8 in the end
// stay as they are, since tokens that follow may complete them. Throws a UserError for a type that
// is not supported.
std::unique_ptr<Decoder> read_decoder(const JsonNode& node);

// ByteLevel: tokens spell bytes.
std::unique_ptr<Decoder> byte_decoder();

}  // namespace anymesh
