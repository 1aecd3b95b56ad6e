#include "tools/hf/gpt/families/families.h"

namespace anymesh {

const Family& gpt2_family() {
  static const Family kFamily{
      .name = "GPT-2",
      .model_type = "gpt2",
      .architecture = "GPT2LMHeadModel",
      .keys = {.hidden_size = "n_embd", .num_layers = "n_layer", .num_heads = "n_head"},
      .other_names = {{"hidden_size", "n_embd"},
                      {"num_hidden_layers", "n_layer"},
                      {"num_attention_heads", "n_head"},
                      {"max_position_embeddings", "n_positions"}},
      .defaults = class_defaults(R"({
        "vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12,
        "activation_function": "gelu_new", "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1,
        "layer_norm_epsilon": 1e-5, "initializer_range": 0.02, "tie_word_embeddings": true})"),
      .read =
          [](const Keys& keys, GptConfig& gpt) {
            gpt.max_position_embeddings = keys.integer("n_positions");
            if (!keys.find("n_inner").is_null()) gpt.ffn_hidden_size = keys.integer("n_inner");
            read_activation(keys, "activation_function", gpt);
            gpt.layernorm_epsilon = keys.number("layer_norm_epsilon");
            gpt.attention_dropout = keys.number("attn_pdrop");
            read_dropout(keys, "embd_pdrop", "resid_pdrop", gpt);
            keys.one_of("scale_attn_weights", {true});
            keys.one_of("scale_attn_by_inverse_layer_idx", {false});
            keys.one_of("add_cross_attention", {false});
          },
      .write =
          [](const GptConfig& gpt, Json& json) {
            json["n_positions"] = gpt.max_position_embeddings;
            json["n_inner"] = gpt.ffn_hidden_size;
            json["activation_function"] = activation_name(gpt, "gelu_new");
            json["layer_norm_epsilon"] = gpt.layernorm_epsilon;
            json["attn_pdrop"] = gpt.attention_dropout;
            json["resid_pdrop"] = json["embd_pdrop"] = gpt.hidden_dropout;
          },
      .tensors = {.base = "transformer.",
                  .embedding = "wte",
                  .positions = "wpe",
                  .layers = "h.",
                  .norm1 = "ln_1",
                  .norm2 = "ln_2",
                  .norm = "ln_f",
                  .qkv = {"attn.c_attn"},
                  .attention_out = "attn.c_proj",
                  .mlp_in = {"mlp.c_fc"},
                  .mlp_out = "mlp.c_proj",
                  .transposed = true},
      .buffers = {{".attn.bias", 4}, {".attn.masked_bias", 0}}};
  return kFamily;
}

}  // namespace anymesh
