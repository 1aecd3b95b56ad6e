#include "tools/hf/gpt/families/families.h"

namespace anymesh {

void read_llama(const Keys& keys, GptConfig& gpt, const char* percent_name) {
  gpt.num_key_value_heads = keys.integer("num_key_value_heads", gpt.num_attention_heads);
  gpt.ffn_hidden_size = keys.integer("intermediate_size");
  gpt.max_position_embeddings = keys.integer("max_position_embeddings");
  gpt.layernorm_epsilon = keys.number("rms_norm_eps");
  gpt.attention_dropout = keys.number("attention_dropout");
  gpt.hidden_dropout = 0;
  gpt.normalization = "rmsnorm";
  gpt.swiglu = !gpt.geglu;
  if (gpt.swiglu) activation_of(keys, "hidden_act", {"silu"});
  gpt.add_bias_linear = false;
  if (const Json head = keys.find("head_dim");
      !head.is_null() && head != gpt.hidden_size / gpt.num_attention_heads)
    gpt.kv_channels = keys.integer("head_dim");
  read_rotary(keys, gpt, percent_name);
}

void write_llama(const GptConfig& gpt, Json& json) {
  json["num_key_value_heads"] = gpt.num_key_value_heads;
  json["head_dim"] = gpt.head_dim();
  json["intermediate_size"] = gpt.ffn_hidden_size;
  json["max_position_embeddings"] = gpt.max_position_embeddings;
  json["hidden_act"] = "silu";
  json["rms_norm_eps"] = gpt.layernorm_epsilon;
  json["attention_dropout"] = gpt.attention_dropout;
  write_rotary(gpt, json);
}

Family::Tensors llama_tensors() {
  return {.base = "model.",
          .embedding = "embed_tokens",
          .layers = "layers.",
          .norm1 = "input_layernorm",
          .norm2 = "post_attention_layernorm",
          .norm = "norm",
          .qkv = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
          .q_norm = "self_attn.q_norm",
          .k_norm = "self_attn.k_norm",
          .attention_out = "self_attn.o_proj",
          .mlp_in = {"mlp.gate_proj", "mlp.up_proj"},
          .mlp_out = "mlp.down_proj"};
}

const Family& llama_family() {
  static const Family kFamily{
      .name = "Llama",
      .model_type = "llama",
      .architecture = "LlamaForCausalLM",
      .defaults = class_defaults(R"({
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": null,
        "head_dim": null, "hidden_act": "silu", "max_position_embeddings": 2048,
        "initializer_range": 0.02, "rms_norm_eps": 1e-6, "attention_bias": false,
        "attention_dropout": 0.0, "mlp_bias": false, "rope_theta": 10000.0,
        "tie_word_embeddings": false})"),
      .read =
          [](const Keys& keys, GptConfig& gpt) {
            read_llama(keys, gpt);
            const bool attention = keys.is_true("attention_bias");
            gpt.add_bias_linear = keys.is_true("mlp_bias");
            if (gpt.add_bias_linear && !attention)
              keys.fail("attention_bias", attention, "true, as mlp_bias is");
            gpt.add_attention_linear_bias = attention && !gpt.add_bias_linear;
          },
      .write =
          [](const GptConfig& gpt, Json& json) {
            write_llama(gpt, json);
            json["attention_bias"] = gpt.attention_output_bias();
            json["mlp_bias"] = gpt.add_bias_linear;
          },
      .tensors = llama_tensors(),
      .buffers = {{"rotary_emb.inv_freq", 1}}};
  return kFamily;
}

}  // namespace anymesh
