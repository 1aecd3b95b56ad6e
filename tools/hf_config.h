#pragma once

#include <filesystem>
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
//   bloom       ALiBi, a normed embedding, tanh GELU, f = 4h          residuals taken after the norm
//
// How rotary wavelengths are scaled, rope_type of a Llama's rope_scaling or rope_parameters:
//
//   llama3      --use-rope-scaling --rope-scaling-factor, with Llama 3's own other factors
//   linear      --rotary-seq-len-interpolation-factor, an integer
//
// Everything else (dynamic, yarn, longrope) is refused, and a part of a head that turns alone.
//
// Key names and defaults are those of transformers' GPT2Config, LlamaConfig and BloomConfig.
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

enum class HfFamily { kGpt2, kLlama, kBloom };
const char* family_name(HfFamily family);  // "GPT-2"

struct HfModel {
  HfFamily family = HfFamily::kGpt2;
  GptConfig gpt;  // with its vocab_size; what follows from other fields need not be filled in
};

// Throws a ValueError with file, key, what it is and what would do.
HfModel read_hf_config(const std::filesystem::path& file);

// The family that has such a model. Throws a ValueError that says what each of them would want.
HfFamily family_of(const GptConfig& gpt);

// The text of config.json. Without the ids of special tokens, which no checkpoint of ours knows.
std::string hf_config_text(const HfModel& model);

}  // namespace anymesh
