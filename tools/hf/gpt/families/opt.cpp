#include "tools/hf/gpt/families/families.h"

namespace anymesh {

// OPT: ReLU, and two rows in front of the table of positions.
const Family& opt_family() {
  static const Family kFamily{
      .name = "OPT",
      .model_type = "opt",
      .architecture = "OPTForCausalLM",
      .keys = {.initializer = "init_std"},
      .defaults = class_defaults(R"({
        "vocab_size": 50272, "hidden_size": 768, "num_hidden_layers": 12, "ffn_dim": 3072,
        "max_position_embeddings": 2048, "dropout": 0.1, "attention_dropout": 0.0,
        "num_attention_heads": 12, "activation_function": "relu", "init_std": 0.02,
        "tie_word_embeddings": true})"),
      .read =
          [](const Keys& keys, GptConfig& gpt) {
            gpt.ffn_hidden_size = keys.integer("ffn_dim");
            gpt.max_position_embeddings = keys.integer("max_position_embeddings");
            gpt.position_embedding_offset = 2;
            gpt.attention_dropout = keys.number("attention_dropout");
            gpt.hidden_dropout = keys.number("dropout");
            read_activation(keys, "activation_function", gpt);
            keys.one_of("word_embed_proj_dim", {gpt.hidden_size});
            keys.one_of("do_layer_norm_before", {true});
            keys.one_of("enable_bias", {true});
            keys.one_of("layer_norm_elementwise_affine", {true});
            keys.one_of("_remove_final_layer_norm", {false});
            keys.find("layerdrop");  // of whole layers, in training
          },
      .write =
          [](const GptConfig& gpt, Json& json) {
            json["ffn_dim"] = gpt.ffn_hidden_size;
            json["max_position_embeddings"] = gpt.max_position_embeddings;
            json["word_embed_proj_dim"] = gpt.hidden_size;
            json["attention_dropout"] = gpt.attention_dropout;
            json["dropout"] = gpt.hidden_dropout;
            json["activation_function"] = activation_name(gpt);
          },
      .tensors = {.base = "model.decoder.",
                  .embedding = "embed_tokens",
                  .positions = "embed_positions",
                  .layers = "layers.",
                  .norm1 = "self_attn_layer_norm",
                  .norm2 = "final_layer_norm",
                  .norm = "final_layer_norm",
                  .qkv = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
                  .attention_out = "self_attn.out_proj",
                  .mlp_in = {"fc1"},
                  .mlp_out = "fc2"}};
  return kFamily;
}

}  // namespace anymesh
