#include "tools/hf/gpt/families/families.h"

namespace anymesh {

// Mixtral: a Mistral with experts in all layers.
const Family& mixtral_family() {
  static const Family kFamily{.name = "Mixtral",
                              .model_type = "mixtral",
                              .architecture = "MixtralForCausalLM",
                              .read =
                                  [](const Keys& keys, GptConfig& gpt) {
                                    gpt.rope_theta = 1000000;
                                    read_llama(keys, gpt);
                                    if (!keys.contains("num_key_value_heads"))
                                      gpt.num_key_value_heads = 8;
                                    if (!keys.contains("rms_norm_eps"))
                                      gpt.layernorm_epsilon = 1e-5;
                                    read_window(keys, gpt, Json());
                                    read_experts(keys, gpt, 8, 2);
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
