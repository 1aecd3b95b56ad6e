#include "tools/hf/gpt/families/families.h"

namespace anymesh {
namespace {

void read_qwen(const Keys& keys, GptConfig& gpt) {
  read_llama(keys, gpt);
  const bool used = keys.is_true("use_sliding_window");
  const Json full = keys.at("max_window_layers");
  if (!full.is_number_integer()) keys.fail("max_window_layers", full, "an integer");
  read_layer_windows(keys, gpt, used ? full.get<int64_t>() : gpt.num_layers);
  if (!used && gpt.window() != 0)
    keys.fail("use_sliding_window", used, "true, as layer_types has \"sliding_attention\"");
}

void write_qwen(const GptConfig& gpt, Json& json) {
  write_llama(gpt, json);
  write_window(gpt, json);
  json["use_sliding_window"] = gpt.window() != 0;
  json["max_window_layers"] = gpt.window() != 0 ? 0 : gpt.num_layers;
}

void read_qwen2(const Keys& keys, GptConfig& gpt) {
  read_qwen(keys, gpt);
  gpt.add_qkv_bias = true;
}

void read_qwen3(const Keys& keys, GptConfig& gpt) {
  read_qwen(keys, gpt);
  gpt.qk_layernorm = true;
  gpt.add_attention_linear_bias = keys.is_true("attention_bias");
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
                              .defaults = class_defaults(llama_family().defaults, R"({
        "vocab_size": 151936, "intermediate_size": 22016, "num_key_value_heads": 32,
        "max_position_embeddings": 32768, "use_sliding_window": false, "sliding_window": 4096,
        "max_window_layers": 28})"),
                              .read = read_qwen2,
                              .write = write_qwen,
                              .tensors = llama_tensors(),
                              .buffers = llama_family().buffers};
  return kFamily;
}

// Qwen 3: a Llama with norms of queries and keys, and heads of a width of their own.
const Family& qwen3_family() {
  static const Family kFamily{
      .name = "Qwen 3",
      .model_type = "qwen3",
      .architecture = "Qwen3ForCausalLM",
      .defaults = class_defaults(qwen2_family().defaults, R"({"head_dim": 128})"),
      .read = read_qwen3,
      .write = write_qwen3,
      .tensors = llama_tensors()};
  return kFamily;
}

}  // namespace anymesh
