#include "tools/hf/gpt/families/families.h"

namespace anymesh {

// StarCoder 2: rotary positions and grouped heads, with LayerNorm, biases and GELU.
const Family& starcoder2_family() {
  static const Family kFamily{
      .name = "StarCoder 2",
      .model_type = "starcoder2",
      .architecture = "Starcoder2ForCausalLM",
      .defaults = class_defaults(R"({
        "vocab_size": 49152, "hidden_size": 3072, "intermediate_size": 12288,
        "num_hidden_layers": 30, "num_attention_heads": 24, "num_key_value_heads": 2,
        "hidden_act": "gelu_pytorch_tanh", "max_position_embeddings": 4096,
        "initializer_range": 0.018042, "norm_epsilon": 1e-5, "attention_dropout": 0.0,
        "residual_dropout": 0.0, "embedding_dropout": 0.0, "rope_theta": 10000.0,
        "tie_word_embeddings": true})"),
      .read =
          [](const Keys& keys, GptConfig& gpt) {
            gpt.num_key_value_heads = keys.integer("num_key_value_heads", gpt.num_attention_heads);
            gpt.ffn_hidden_size = keys.integer("intermediate_size");
            gpt.max_position_embeddings = keys.integer("max_position_embeddings");
            gpt.layernorm_epsilon = keys.number("norm_epsilon");
            gpt.attention_dropout = keys.number("attention_dropout");
            read_dropout(keys, "embedding_dropout", "residual_dropout", gpt);
            read_activation(keys, "hidden_act", gpt);
            keys.one_of("use_bias", {true});
            read_rotary(keys, gpt);
            read_window(keys, gpt);
          },
      .write =
          [](const GptConfig& gpt, Json& json) {
            json["num_key_value_heads"] = gpt.num_key_value_heads;
            json["intermediate_size"] = gpt.ffn_hidden_size;
            json["max_position_embeddings"] = gpt.max_position_embeddings;
            json["norm_epsilon"] = gpt.layernorm_epsilon;
            json["attention_dropout"] = gpt.attention_dropout;
            json["residual_dropout"] = json["embedding_dropout"] = gpt.hidden_dropout;
            json["hidden_act"] = activation_name(gpt);
            write_rotary(gpt, json);
            write_window(gpt, json);
          },
      .tensors =
          [] {
            Family::Tensors tensors = llama_tensors();
            tensors.mlp_in = {"mlp.c_fc"};
            tensors.mlp_out = "mlp.c_proj";
            return tensors;
          }()};
  return kFamily;
}

}  // namespace anymesh
