#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "models/gpt/gpt_config.h"
#include "tools/hf/tokenizer_files.h"

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
enum class HfFamily { kGpt2, kLlama, kBloom };
const char* family_name(HfFamily family);  // "GPT-2"

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

}  // namespace anymesh
