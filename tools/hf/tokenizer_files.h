#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "framework/format/folder.h"
#include "tools/hf/args.h"

namespace anymesh {

inline constexpr const char* kHfGenerationFile = "generation_config.json";

// Files that AutoTokenizer and generate() of transformers read beside a model. They are copied as
// they are.
inline constexpr const char* kHfTokenizerFiles[] = {
    "tokenizer.json",    "tokenizer.model",       "vocab.json",
    "merges.txt",        "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "chat_template.jinja",   kHfGenerationFile};

// Returns those that a folder has.
std::vector<std::string> tokenizer_files(const std::filesystem::path& folder);

// Ids of special tokens by the keys below, as far as they are known: one, several, or none for
// null.
using TokenIds = std::map<std::string, std::vector<int64_t>>;
inline constexpr const char* kTokenIds[] = {"bos_token_id", "eos_token_id", "pad_token_id"};

// Returns the ids of a folder, by its generation_config.json, else its tokenizer files.
TokenIds token_ids_beside(const std::filesystem::path& folder);
// Returns the ids of a run's tokenizer, as far as its files are where it says.
TokenIds token_ids_of_run(const TokenizerChoice& choice);

}  // namespace anymesh
