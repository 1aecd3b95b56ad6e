#pragma once

#include <memory>
#include <string>

#include "framework/data/tokenizers/json_node.h"

namespace anymesh {

// The "normalizer" of a tokenizer.json: rewrites a text before it is split.
class Normalizer {
 public:
  virtual ~Normalizer() = default;

  // Rewrites a valid UTF-8 text in place. `at_start` says whether the text's first character is the
  // document's first, and stays so unless that one is removed.
  virtual void apply(std::string& text, bool& at_start) const = 0;
};

// Returns null for null. Throws a UserError for a type that is not supported.
std::unique_ptr<Normalizer> read_normalizer(const JsonNode& node);

}  // namespace anymesh
