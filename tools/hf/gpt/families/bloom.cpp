#include "tools/hf/gpt/families/families.h"

namespace anymesh {

const Family& bloom_family() {
  static const Family kFamily{
      .name = "BLOOM",
      .model_type = "bloom",
      .architecture = "BloomForCausalLM",
      .keys = {.num_layers = "n_layer", .num_heads = "n_head"},
      .other_names = {{"n_embed", "hidden_size"},
                      {"num_hidden_layers", "n_layer"},
                      {"num_attention_heads", "n_head"}},
      .defaults = class_defaults(R"({
        "vocab_size": 250880, "hidden_size": 64, "n_layer": 2, "n_head": 8,
        "layer_norm_epsilon": 1e-5, "initializer_range": 0.02, "attention_dropout": 0.0,
        "hidden_dropout": 0.0, "tie_word_embeddings": true})"),
      .read =
          [](const Keys& keys, GptConfig& gpt) {
            // ALiBi has no table; this is the length it was trained with.
            gpt.max_position_embeddings = keys.integer("seq_length", 2048);
            gpt.layernorm_epsilon = keys.number("layer_norm_epsilon");
            gpt.attention_dropout = keys.number("attention_dropout");
            gpt.hidden_dropout = keys.number("hidden_dropout");
            gpt.position_embedding_type = "alibi";
            gpt.embed_layernorm = true;
            keys.one_of("apply_residual_connection_post_layernorm", {false});
          },
      .write =
          [](const GptConfig& gpt, Json& json) {
            json["seq_length"] = gpt.max_position_embeddings;
            json["layer_norm_epsilon"] = gpt.layernorm_epsilon;
            json["attention_dropout"] = gpt.attention_dropout;
            json["hidden_dropout"] = gpt.hidden_dropout;
          },
      .tensors = {.base = "transformer.",
                  .embedding = "word_embeddings",
                  .embedding_norm = "word_embeddings_layernorm",
                  .layers = "h.",
                  .norm1 = "input_layernorm",
                  .norm2 = "post_attention_layernorm",
                  .norm = "ln_f",
                  .qkv = {"self_attention.query_key_value"},
                  .attention_out = "self_attention.dense",
                  .mlp_in = {"mlp.dense_h_to_4h"},
                  .mlp_out = "mlp.dense_4h_to_h",
                  .grouped = true},
  };
  return kFamily;
}

}  // namespace anymesh
