#pragma once

#include <cstdint>
#include <vector>

#include "framework/data/tokenizers/json_node.h"

namespace anymesh {

// The tokens that the "post_processor" of a tokenizer.json puts around one text.
struct AroundText {
  std::vector<int32_t> before, behind;
};

// Throws a UserError for a type that is not supported.
AroundText read_post_processor(const JsonNode& node);

}  // namespace anymesh
