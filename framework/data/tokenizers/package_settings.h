#pragma once

#include <filesystem>
#include <optional>

#include "framework/data/tokenizers/json_node.h"
#include "framework/data/tokenizers/pipeline_tokenizer.h"

namespace anymesh {

// The files beside a tokenizer.json, as AutoTokenizer of transformers 5 reads them. An empty folder
// has none.
//
//   tokenizer_config.json   added_tokens_decoder, names of special tokens ("pad_token", and any
//                           other "..._token"), extra_special_tokens, split_special_tokens
//   added_tokens.json, special_tokens_map.json
//                           of older versions: read if there is no added_tokens_decoder. A name in
//                           the second goes before tokenizer_config.json's
//   generation_config.json  eos_token_id, bos_token_id
//
// Adds the tokens that the tokenizer lacks, in transformers' order, and sets what tokenizer.h
// lists, also by `parts.around`. Throws a UserError if nothing says which token ends a document.
void read_package_settings(const std::filesystem::path& folder, const JsonNode& tokenizer,
                           TokenizerParts& parts);

// Returns whether ByteLevel pre-tokenizers add a space, whatever the tokenizer.json says; none if
// the class in tokenizer_config.json does not decide on that.
std::optional<bool> prefix_space_of_class(const std::filesystem::path& folder);

}  // namespace anymesh
