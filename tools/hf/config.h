#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "framework/format/output.h"
#include "models/gpt/gpt_config.h"

namespace anymesh {

// The models that both Hugging Face's config.json and our flags can express:
//
//   model_type  is our model with                                     refused
//   gpt2        learned positions, GELU of either kind                attention scaled by the layer
//   llama       RMSNorm, SwiGLU, rotary positions,                    head_dim other than h/n
//               grouped keys and values, all biases or none
//   mistral     as llama, and a llama it becomes                      a window within its positions
//   bloom       ALiBi, a normed embedding, tanh GELU, f = 4h          residuals taken after the norm
//
// Scaling of rotary wavelengths, by the rope_type in a Llama's rope_scaling or rope_parameters:
//
//   llama3      --use-rope-scaling --rope-scaling-factor, with Llama 3's own other factors
//   linear      --rotary-seq-len-interpolation-factor, an integer
//
// Every other scaling (dynamic, yarn, longrope) is refused. So are heads that turn only in part.
//
// Key names and defaults are as in transformers' GPT2Config, LlamaConfig, MistralConfig and
// BloomConfig.
inline constexpr const char* kHfConfigFile = "config.json";

// Files that AutoTokenizer and generate() read beside it. They are copied as they are.
inline constexpr const char* kHfTokenizerFiles[] = {
    "tokenizer.json",    "tokenizer.model",       "vocab.json",
    "merges.txt",        "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "chat_template.jinja",   "generation_config.json"};
// Returns the tokenizer files that a folder has.
std::vector<std::string> tokenizer_files(const std::filesystem::path& folder);
std::vector<Manifest::File> copy_files(const std::vector<std::string>& names,
                                       const std::filesystem::path& from,
                                       const std::filesystem::path& to);

struct TokenizerChoice;

enum class HfFamily { kGpt2, kLlama, kBloom };
const char* family_name(HfFamily family);  // "GPT-2"

// Ids by the keys below, as far as they are known: one, several, or none for null.
using TokenIds = std::map<std::string, std::vector<int64_t>>;
inline constexpr const char* kTokenIds[] = {"bos_token_id", "eos_token_id", "pad_token_id"};

struct HfModel {
  HfFamily family = HfFamily::kGpt2;
  GptConfig gpt;  // with its vocab_size; fields derived from others may be unset
  TokenIds token_ids = {};
  std::vector<std::string> unknown_keys = {};  // in config.json: neither used nor without effect
};

// Throws a DamagedFile that names the file, the key, its value and the accepted values.
HfModel read_hf_config(const std::filesystem::path& file);

// Returns a note that names the unknown keys.
std::string unknown_keys_note(const HfModel& model);

// Returns the family that has such a model. Throws a DamagedFile that says which flags each would
// need.
HfFamily family_of(const GptConfig& gpt);

// Returns the text of config.json. Leaves out the ids of special tokens that are not known.
std::string hf_config_text(const HfModel& model);

// Returns the special tokens of a folder, by its generation_config.json, else its tokenizer files.
TokenIds token_ids_beside(const std::filesystem::path& folder);
// Returns the special tokens of a run's tokenizer, as far as its files are where it says.
TokenIds token_ids_of_run(const TokenizerChoice& choice);

}  // namespace anymesh
