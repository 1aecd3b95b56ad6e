#include "tools/hf/gpt/families/families.h"

namespace anymesh {
namespace {

void read_qwen(const Keys& keys, GptConfig& gpt) {
  read_llama(keys, gpt);
  if (!keys.contains("num_key_value_heads")) gpt.num_key_value_heads = 32;
  read_layer_windows(keys, gpt);
}

void write_qwen(const GptConfig& gpt, Json& json) {
  write_llama(gpt, json);
  write_layer_windows(gpt, json);
}

void read_qwen2(const Keys& keys, GptConfig& gpt) {
  read_qwen(keys, gpt);
  gpt.add_qkv_bias = true;
}

void read_qwen3(const Keys& keys, GptConfig& gpt) {
  read_qwen(keys, gpt);
  if (!keys.contains("head_dim")) gpt.kv_channels = 128;
  gpt.qk_layernorm = true;
  gpt.add_attention_linear_bias = keys.is_true("attention_bias", false);
}

void write_qwen3(const GptConfig& gpt, Json& json) {
  write_qwen(gpt, json);
  json["attention_bias"] = gpt.attention_output_bias();
}

}  // namespace

// Qwen 2 and 2.5: a Llama with biases of queries, keys and values.
const Family& qwen2_family() {
  static const Family kFamily{.name = "Qwen 2",
                              .model_type = "qwen2",
                              .architecture = "Qwen2ForCausalLM",
                              .read = read_qwen2,
                              .write = write_qwen,
                              .tensors = llama_tensors(),
                              .buffers = llama_family().buffers};
  return kFamily;
}

// Qwen 3: a Llama with norms of queries and keys, and heads of a width of their own.
const Family& qwen3_family() {
  static const Family kFamily{.name = "Qwen 3",
                              .model_type = "qwen3",
                              .architecture = "Qwen3ForCausalLM",
                              .read = read_qwen3,
                              .write = write_qwen3,
                              .tensors = llama_tensors()};
  return kFamily;
}

}  // namespace anymesh
