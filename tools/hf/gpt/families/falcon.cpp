#include "tools/hf/gpt/families/families.h"

namespace anymesh {

// Falcon 40B and later ("new_decoder_architecture"): attention and MLP side by side, each with its
// norm.
const Family& falcon_family() {
  static const Family kFamily{
      .name = "Falcon",
      .model_type = "falcon",
      .architecture = "FalconForCausalLM",
      .other_names = {{"n_embed", "hidden_size"}},
      .defaults = class_defaults(R"({
        "vocab_size": 65024, "hidden_size": 4544, "num_hidden_layers": 32,
        "num_attention_heads": 71, "max_position_embeddings": 2048, "layer_norm_epsilon": 1e-5,
        "initializer_range": 0.02, "attention_dropout": 0.0, "hidden_dropout": 0.0,
        "activation": "gelu", "new_decoder_architecture": false, "alibi": false, "bias": false,
        "rope_theta": 10000.0, "tie_word_embeddings": true})"),
      .read =
          [](const Keys& keys, GptConfig& gpt) {
            gpt.num_key_value_heads = keys.integer("num_kv_heads", gpt.num_attention_heads);
            gpt.ffn_hidden_size = keys.integer("ffn_hidden_size", 4 * gpt.hidden_size);
            gpt.max_position_embeddings = keys.integer("max_position_embeddings");
            gpt.layernorm_epsilon = keys.number("layer_norm_epsilon");
            gpt.attention_dropout = keys.number("attention_dropout");
            gpt.hidden_dropout = keys.number("hidden_dropout");
            read_activation(keys, "activation", gpt);
            gpt.add_bias_linear = false;
            gpt.use_parallel_residual = true;
            for (const auto& [key, value] :
                 {std::pair("bias", false), {"alibi", false}, {"new_decoder_architecture", true}})
              if (keys.is_true(key) != value) keys.one_of(key, {value});
            keys.one_of("num_ln_in_parallel_attn", {2});
            for (const char* unused : {"multi_query", "parallel_attn"}) keys.find(unused);
            read_rotary(keys, gpt);
          },
      .write =
          [](const GptConfig& gpt, Json& json) {
            json["num_kv_heads"] = gpt.num_key_value_heads;
            json["ffn_hidden_size"] = gpt.ffn_hidden_size;
            json["max_position_embeddings"] = gpt.max_position_embeddings;
            json["layer_norm_epsilon"] = gpt.layernorm_epsilon;
            json["attention_dropout"] = gpt.attention_dropout;
            json["hidden_dropout"] = gpt.hidden_dropout;
            json["activation"] = activation_name(gpt);
            json["new_decoder_architecture"] = true;
            json["bias"] = json["alibi"] = false;
            write_rotary(gpt, json);
          },
      .tensors =
          [] {
            Family::Tensors tensors = bloom_family().tensors;
            tensors.norm1 = "ln_attn";
            tensors.norm2 = "ln_mlp";
            return tensors;
          }()};
  return kFamily;
}

}  // namespace anymesh
