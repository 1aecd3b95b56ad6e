#include "tools/hf/gpt/families/families.h"

namespace anymesh {

// StarCoder 2: rotary positions and grouped heads, with LayerNorm, biases and GELU.
const Family& starcoder2_family() {
  static const Family kFamily{
      .name = "StarCoder 2",
      .model_type = "starcoder2",
      .architecture = "Starcoder2ForCausalLM",
      .tied = true,
      .read =
          [](const Keys& keys, GptConfig& gpt) {
            gpt.num_key_value_heads = keys.integer({"num_key_value_heads"}, 2);
            gpt.ffn_hidden_size = keys.integer({"intermediate_size"}, 12288);
            gpt.max_position_embeddings = keys.integer({"max_position_embeddings"}, 4096);
            gpt.layernorm_epsilon = keys.number("norm_epsilon", 1e-5);
            gpt.attention_dropout = keys.number("attention_dropout", 0);
            read_dropout(keys, "embedding_dropout", "residual_dropout", 0, gpt);
            read_activation(keys, "hidden_act", "gelu_pytorch_tanh", gpt);
            keys.one_of("use_bias", {true});
            read_rotary(keys, gpt);
            read_window(keys, gpt, Json());
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
