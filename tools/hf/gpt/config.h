#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "models/gpt/gpt_config.h"
#include "tools/hf/tokenizer_files.h"

namespace anymesh {

// The models that both Hugging Face's config.json and our flags can express:
//
//   model_type  is our model with                                       refused
//   gpt2        learned positions, GELU of either kind                  attention scaled by layer
//   llama       RMSNorm, SwiGLU, rotary positions, grouped keys and     biases of the MLP alone
//               values, biases of all, of attention or none
//   mistral     as llama, with a window                                 windows in some layers
//   qwen2       as llama, with biases of q, k, v, and a window          windows in some layers
//   qwen3       as llama, with norms of q and k, and a window           windows in some layers
//   gemma       as llama, with GeGLU, norms of 1 + w, scaled embedding  soft caps
//   phi3        as mistral; a part of a head may turn                   scaling: longrope
//   gpt_neox    parallel residual or not, partial rotary, GELU, ReLU    attention without biases
//   opt         ReLU or GELU, two rows before position 0                norms behind the sublayers
//   starcoder2  rotary positions, grouped heads, GELU, a window         no biases
//   falcon      parallel residual with two norms, no biases             the old architecture
//   bloom       ALiBi, a normed embedding, tanh GELU, f = 4h            residuals taken after norms
//   mixtral     as mistral, with experts in all layers                  one expert in a layer
//   qwen2_moe   as qwen2, with experts in any layers, and a shared one  windows
//   qwen3_moe   as qwen3, with experts in any layers                    one expert in a layer
//   olmoe       as llama, with experts in all layers, and norms of all  limits of q, k, v
//               heads of q and of k
//
// Scaling of rotary wavelengths, by the rope_type in rope_scaling or rope_parameters:
//
//   llama3      --use-rope-scaling --rope-scaling-factor, with Llama 3's own other factors
//   linear      --rotary-seq-len-interpolation-factor
//   yarn        --rope-type yarn, without an attention factor of its own
//   dynamic     --rope-type dynamic
//
// Key names and defaults are as in transformers' config classes. A family's facts are those of
// family.h.
class Keys;
struct Family;

struct HfModel {
  const Family* family = nullptr;
  GptConfig gpt;  // with its vocab_size; fields derived from others may be unset
  TokenIds token_ids = {};
  std::vector<std::string> notes = {};     // about config.json, for the user: unknown keys, say
  std::string source = "its config.json";  // of the model, for messages
};

// Throws a DamagedFile that names the file, the key, its value and the accepted values.
HfModel read_hf_config(const std::filesystem::path& file);
HfModel read_hf_config(Keys keys);

// Returns the family that has such a model: the preferred model_type if it can, else the first that
// can. Throws a DamagedFile that says which flags each would need.
const Family& family_of(const GptConfig& gpt, const std::string& preferred = "");

// Returns the text of config.json. Leaves out the ids of special tokens that are not known.
std::string hf_config_text(const HfModel& model);

}  // namespace anymesh
