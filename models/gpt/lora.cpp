#include "models/gpt/lora.h"

#include <set>

#include "framework/config/require.h"
#include "framework/util/format.h"

namespace anymesh {

std::vector<LoraMatrix> lora_matrices(const GptConfig& gpt) {
  std::vector<LoraMatrix> matrices = {{"query_key_value", {"q_proj", "k_proj", "v_proj"}},
                                      {"dense", {"o_proj"}}};
  bool has_mlp = gpt.moe_shared_expert_intermediate_size > 0;
  for (int layer = 0; layer < gpt.num_layers; ++layer) has_mlp |= !gpt.has_experts(layer);
  if (!has_mlp) return matrices;
  matrices.push_back({"dense_h_to_4h", {"up_proj"}});
  if (gpt.gated()) matrices.back().parts.insert(matrices.back().parts.begin(), "gate_proj");
  matrices.push_back({"dense_4h_to_h", {"down_proj"}});
  return matrices;
}

std::vector<std::string> lora_targets(const GptConfig& gpt) {
  if (gpt.lora_rank == 0) return {};
  const std::string all = "all-linear";
  std::set<std::string> asked(gpt.lora_target.begin(), gpt.lora_target.end()), known = {all};
  if (asked.empty()) asked = {"q_proj", "v_proj"};
  std::vector<std::string> chosen, names;
  for (const auto& [matrix, parts] : lora_matrices(gpt)) {
    known.insert(matrix);
    known.insert(parts.begin(), parts.end());
    names.insert(names.end(), parts.begin(), parts.end());
    for (const std::string& part : parts)
      if (asked.contains(all) || asked.contains(matrix) || asked.contains(part))
        chosen.push_back(part);
    names.push_back(matrix);
  }
  for (const std::string& name : asked)
    require(known.contains(name), "--lora-target ", name, ": this model has no such matrix",
            gpt.num_experts > 1 ? " (routed experts and routers have no adapters)" : "",
            "; there are ", joined(names), ", and all of them, ", all);
  return chosen;
}

}  // namespace anymesh
