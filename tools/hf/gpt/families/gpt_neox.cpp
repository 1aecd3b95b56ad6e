#include "tools/hf/gpt/families/families.h"

namespace anymesh {

// GPT-NeoX and Pythia: attention and MLP side by side, and a part of each head turns.
const Family& gpt_neox_family() {
  static const Family kFamily{
      .name = "GPT-NeoX",
      .model_type = "gpt_neox",
      .architecture = "GPTNeoXForCausalLM",
      .defaults = class_defaults(R"({
        "vocab_size": 50432, "hidden_size": 6144, "num_hidden_layers": 44,
        "num_attention_heads": 64, "intermediate_size": 24576, "hidden_act": "gelu",
        "attention_dropout": 0.0, "hidden_dropout": 0.0, "max_position_embeddings": 2048,
        "initializer_range": 0.02, "layer_norm_eps": 1e-5, "use_parallel_residual": true,
        "attention_bias": true, "rotary_emb_base": 10000.0, "rotary_pct": 0.25,
        "tie_word_embeddings": false})"),
      .read =
          [](const Keys& keys, GptConfig& gpt) {
            gpt.ffn_hidden_size = keys.integer("intermediate_size");
            gpt.max_position_embeddings = keys.integer("max_position_embeddings");
            gpt.layernorm_epsilon = keys.number("layer_norm_eps");
            gpt.attention_dropout = keys.number("attention_dropout");
            gpt.hidden_dropout = keys.number("hidden_dropout");
            gpt.use_parallel_residual = keys.is_true("use_parallel_residual");
            keys.one_of("attention_bias", {true});
            keys.find("classifier_dropout");
            read_activation(keys, "hidden_act", gpt);
            read_rotary(keys, gpt, "rotary_pct", "rotary_emb_base");
          },
      .write =
          [](const GptConfig& gpt, Json& json) {
            json["intermediate_size"] = gpt.ffn_hidden_size;
            json["max_position_embeddings"] = gpt.max_position_embeddings;
            json["layer_norm_eps"] = gpt.layernorm_epsilon;
            json["attention_dropout"] = gpt.attention_dropout;
            json["hidden_dropout"] = gpt.hidden_dropout;
            json["use_parallel_residual"] = gpt.use_parallel_residual;
            json["hidden_act"] = activation_name(gpt);
            json["rotary_pct"] = gpt.rotary_percent;
            write_rotary(gpt, json, "rotary_emb_base");
          },
      .tensors = {.base = "gpt_neox.",
                  .embedding = "embed_in",
                  .layers = "layers.",
                  .norm1 = "input_layernorm",
                  .norm2 = "post_attention_layernorm",
                  .norm = "final_layer_norm",
                  .qkv = {"attention.query_key_value"},
                  .attention_out = "attention.dense",
                  .mlp_in = {"mlp.dense_h_to_4h"},
                  .mlp_out = "mlp.dense_4h_to_h",
                  .head = "embed_out",
                  .grouped = true},
      .buffers = {{".attention.bias", 4},
                  {".attention.masked_bias", 0},
                  {".rotary_emb.inv_freq", 1}}};
  return kFamily;
}

}  // namespace anymesh
