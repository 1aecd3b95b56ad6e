#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "framework/checkpoint/format/manifest.h"
#include "models/gpt/gpt_config.h"

namespace anymesh {

// A model as Hugging Face's config.json and our flags both say it. What one says and the other
// can't:
//
//   model_type  is our model with                                     refused
//   gpt2        learned positions, GELU of either kind                attention scaled by the layer
//   llama       RMSNorm, SwiGLU, rotary positions,                    head_dim other than h/n
//               grouped keys and values, all biases or none
//   mistral     as llama, and a llama it becomes                      a window within its positions
//   bloom       ALiBi, a normed embedding, tanh GELU, f = 4h          residuals taken after the norm
//
// How rotary wavelengths are scaled, rope_type of a Llama's rope_scaling or rope_parameters:
//
//   llama3      --use-rope-scaling --rope-scaling-factor, with Llama 3's own other factors
//   linear      --rotary-seq-len-interpolation-factor, an integer
//
// Everything else (dynamic, yarn, longrope) is refused, and a part of a head that turns alone.
//
// Key names and defaults are those of transformers' GPT2Config, LlamaConfig, MistralConfig and
// BloomConfig.
inline constexpr const char* kHfConfigFile = "config.json";

// What AutoTokenizer and generate() read beside it. These go along as they are.
inline constexpr const char* kHfTokenizerFiles[] = {
    "tokenizer.json",    "tokenizer.model",       "vocab.json",
    "merges.txt",        "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "chat_template.jinja",   "generation_config.json"};
// Those that a folder has.
std::vector<std::string> tokenizer_files(const std::filesystem::path& folder);
std::vector<Manifest::File> copy_files(const std::vector<std::string>& names,
                                       const std::filesystem::path& from,
                                       const std::filesystem::path& to);

struct TokenizerChoice;

enum class HfFamily { kGpt2, kLlama, kBloom };
const char* family_name(HfFamily family);  // "GPT-2"

// By the keys below, as far as they are known: one, several, or none for null.
using TokenIds = std::map<std::string, std::vector<int64_t>>;
inline constexpr const char* kTokenIds[] = {"bos_token_id", "eos_token_id", "pad_token_id"};

struct HfModel {
  HfFamily family = HfFamily::kGpt2;
  GptConfig gpt;  // with its vocab_size; what follows from other fields need not be filled in
  TokenIds token_ids = {};
  std::vector<std::string> unknown_keys = {};  // of config.json: neither used nor without effect
};

// Throws a ValueError with file, key, what it is and what would do.
HfModel read_hf_config(const std::filesystem::path& file);

// A note about keys that are not known.
std::string unknown_keys_note(const HfModel& model);

// The family that has such a model. Throws a ValueError that says what each of them would want.
HfFamily family_of(const GptConfig& gpt);

// The text of config.json. Ids of special tokens that are not known are left out.
std::string hf_config_text(const HfModel& model);

// Special tokens by a folder's generation_config.json, else by the tokenizer's files there.
TokenIds token_ids_beside(const std::filesystem::path& folder);
// Those of the tokenizer that a run had, as far as its files are where it says.
TokenIds token_ids_of_run(const TokenizerChoice& choice);

}  // namespace anymesh
