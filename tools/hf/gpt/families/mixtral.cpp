#include "tools/hf/gpt/families/families.h"

namespace anymesh {

// Mixtral: a Mistral with experts in all layers.
const Family& mixtral_family() {
  static const Family kFamily{.name = "Mixtral",
                              .model_type = "mixtral",
                              .architecture = "MixtralForCausalLM",
                              .other_names = {{"num_experts", "num_local_experts"}},
                              .defaults = class_defaults(mistral_family().defaults, R"({
        "sliding_window": null, "rms_norm_eps": 1e-5, "rope_theta": 1000000.0,
        "num_experts_per_tok": 2, "num_local_experts": 8})"),
                              .read =
                                  [](const Keys& keys, GptConfig& gpt) {
                                    read_llama(keys, gpt);
                                    read_window(keys, gpt);
                                    read_experts(keys, gpt, "num_local_experts");
                                  },
                              .write =
                                  [](const GptConfig& gpt, Json& json) {
                                    write_llama(gpt, json);
                                    json["intermediate_size"] = gpt.moe_ffn_size();
                                    write_window(gpt, json);
                                    write_experts(gpt, json, "num_local_experts");
                                  },
                              .tensors =
                                  [] {
                                    Family::Tensors tensors = llama_tensors();
                                    tensors.experts = {.router = "block_sparse_moe.gate",
                                                       .each = "block_sparse_moe.experts.",
                                                       .gate = "w1",
                                                       .up = "w3",
                                                       .down = "w2"};
                                    return tensors;
                                  }()};
  return kFamily;
}

}  // namespace anymesh
