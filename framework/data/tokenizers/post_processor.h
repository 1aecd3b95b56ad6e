#pragma once

#include "framework/data/tokenizers/json_node.h"
#include "framework/data/tokenizers/tokenizer.h"

namespace anymesh {

// Reads what the "post_processor" of a tokenizer.json puts around one text. Throws a UserError for
// a type that is not supported.
AroundText read_post_processor(const JsonNode& node);

}  // namespace anymesh
