#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "framework/format/sharded.h"
#include "framework/format/whole.h"
#include "tools/hf/gpt/config.h"
#include "tools/hf/gpt/lora.h"

namespace anymesh {

// Reads and describes LoRA adapters (lora.h) as PEFT keeps them (github.com/huggingface/peft).
inline constexpr const char *kPeftConfigFile = "adapter_config.json",
                            *kPeftWeights = "adapter_model";

// An adapter of a base model. It is in
//
//   a folder of PEFT       adapter_config.json, and adapter_model.safetensors or .bin
//   a Trainer's folder     the same, with DeepSpeed's checkpoint of any ZeRO stage (`latest`). It
//                          is preferred because it has the optimizer's states too
//
// Names may have the adapter's (lora_A.default.weight) and what trainers' wrappers add.
struct PeftAdapter {
  SourceFiles sources;
  Lora lora;
  std::vector<LoraPart> parts = {};          // those of its targets
  std::vector<HfParameter> parameters = {};  // ours; `theirs` have the stored names
  Checkpoint weights = {};                   // has them
  std::vector<std::string> notes = {};       // for the user, a line each

  // Whether it has the optimizer's states, so that a run can go on, and after how many steps.
  bool has_states() const { return weights.optimizer_state && weights.states_refused.empty(); }
  int64_t iteration() const;  // 0 without states
};

// Throws a DamagedFile that names file and key or tensor, what was found and what was expected, for
// what our adapters cannot be: ranks or alphas that differ among modules, DoRA and other variants,
// biases, modules that are trained whole, adapters of embeddings, of experts, of some layers only,
// or of a matrix that is several of ours. With use_rslora, alpha is scaled by the root of the rank,
// which gives the same products.
PeftAdapter open_peft(const std::filesystem::path& folder, const HfModel& base);

// Returns the text of adapter_config.json. `base` is the base model's name or folder.
std::string peft_config_text(const HfModel& model, const Lora& lora, const std::string& base);

}  // namespace anymesh
