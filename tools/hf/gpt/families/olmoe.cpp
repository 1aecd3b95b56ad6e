#include "tools/hf/gpt/families/families.h"

namespace anymesh {

// OLMoE: a Llama with experts in all layers, and norms of all heads of queries and of keys.
const Family& olmoe_family() {
  static const Family kFamily{
      .name = "OLMoE",
      .model_type = "olmoe",
      .architecture = "OlmoeForCausalLM",
      .other_names = {{"num_local_experts", "num_experts"}},
      .defaults = class_defaults(llama_family().defaults, R"({
        "vocab_size": 50304, "hidden_size": 2048, "intermediate_size": 2048,
        "num_hidden_layers": 16, "num_attention_heads": 16, "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5, "num_experts_per_tok": 8, "num_experts": 64,
        "norm_topk_prob": false})"),
      .read =
          [](const Keys& keys, GptConfig& gpt) {
            read_llama(keys, gpt);
            read_experts(keys, gpt);
            read_weights_of_experts(keys, gpt);
            gpt.qk_layernorm = gpt.qk_layernorm_all_heads = true;
            gpt.add_attention_linear_bias = keys.is_true("attention_bias");
            if (const Json limit = keys.find("clip_qkv"); !limit.is_null())
              keys.fail("clip_qkv", limit, "null: queries, keys and values have no limit here");
            if (gpt.kv_channels != 0)
              keys.fail("head_dim", gpt.kv_channels,
                        "hidden_size / num_attention_heads, since its norms have that width");
          },
      .write =
          [](const GptConfig& gpt, Json& json) {
            write_llama(gpt, json);
            json.erase("head_dim");
            json["intermediate_size"] = gpt.moe_ffn_size();
            write_experts(gpt, json);
            write_weights_of_experts(gpt, json);
            json["attention_bias"] = gpt.attention_output_bias();
          },
      .tensors =
          [] {
            Family::Tensors tensors = llama_tensors();
            tensors.experts = expert_tensors();
            return tensors;
          }()};
  return kFamily;
}

}  // namespace anymesh
