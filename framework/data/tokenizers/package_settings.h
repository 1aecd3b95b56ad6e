#pragma once

#include <filesystem>

#include "framework/data/tokenizers/json_node.h"
#include "framework/data/tokenizers/pipeline_tokenizer.h"
#include "framework/data/tokenizers/post_processor.h"

namespace anymesh {

// Sets the special tokens of a tokenizer.json (tokenizer.h) by its post-processor and by the files
// in `folder`, which is empty if none is to be read. Throws a UserError if nothing says which token
// ends a document.
void set_special_tokens(const JsonNode& tokenizer, const AroundText& around,
                        const std::filesystem::path& folder, TokenizerParts& parts);

}  // namespace anymesh
