#pragma once

#include <string>
#include <vector>

#include "models/gpt/gpt_config.h"

namespace anymesh {

// The matrices that low-rank adapters (framework/tensor_parallel/lora.h) may be beside, by the
// names that Hugging Face's files have for them. Some are rows of one matrix here:
//
//   query_key_value   q_proj, k_proj, v_proj
//   dense             o_proj
//   dense_h_to_4h     gate_proj, up_proj; up_proj alone if the MLP is not gated
//   dense_4h_to_h     down_proj
//
// The MLP's are those of layers without experts, and of shared experts. Routed experts have none.

// A matrix by the last part of its name, and the names of its parts.
struct LoraMatrix {
  std::string name;
  std::vector<std::string> parts;
};
// Returns the matrices that the model has, in the order above.
std::vector<LoraMatrix> lora_matrices(const GptConfig& gpt);

// Returns the parts that --lora-target asks for, in this order; none without --lora-rank. Throws
// UserError, with a list of what there is, for a name that the model has not.
std::vector<std::string> lora_targets(const GptConfig& gpt);

}  // namespace anymesh
