#include <algorithm>

#include "tools/hf/gpt/families/families.h"

namespace anymesh {
namespace {

// The defaults that Qwen 2 MoE and Qwen 3 MoE share.
Json qwen_moe_defaults() {
  return class_defaults(qwen2_family().defaults, R"({
        "hidden_size": 2048, "num_hidden_layers": 24, "decoder_sparse_step": 1,
        "norm_topk_prob": false})");
}

void read_qwen_moe(const Keys& keys, GptConfig& gpt) {
  read_llama(keys, gpt);
  read_experts(keys, gpt);
  gpt.moe_ffn_hidden_size = keys.integer("moe_intermediate_size");
  read_weights_of_experts(keys, gpt);
  read_expert_layers(keys, gpt);
}

void write_qwen_moe(const GptConfig& gpt, Json& json) {
  write_llama(gpt, json);
  write_experts(gpt, json);
  json["moe_intermediate_size"] = gpt.moe_ffn_size();
  write_weights_of_experts(gpt, json);
  write_expert_layers(gpt, json);
}

void read_qwen2_moe(const Keys& keys, GptConfig& gpt) {
  read_qwen_moe(keys, gpt);
  gpt.moe_shared_expert_intermediate_size = keys.integer("shared_expert_intermediate_size");
  gpt.moe_shared_expert_gate = true;
  gpt.add_qkv_bias = keys.is_true("qkv_bias");
  keys.one_of("use_sliding_window", {false});  // true: in every second layer
  for (const char* unused : {"sliding_window", "max_window_layers"}) keys.find(unused);
  const Json types = keys.find("layer_types");
  if (std::ranges::any_of(types, [](const Json& type) { return type != "full_attention"; }))
    keys.fail("layer_types", types, "\"full_attention\" alone, as use_sliding_window is false");
}

void write_qwen2_moe(const GptConfig& gpt, Json& json) {
  write_qwen_moe(gpt, json);
  if (gpt.moe_shared_expert_intermediate_size > 0)  // else it has the class's, and does not fit
    json["shared_expert_intermediate_size"] = gpt.moe_shared_expert_intermediate_size;
  json["qkv_bias"] = gpt.qkv_bias();
  json["use_sliding_window"] = false;
}

void read_qwen3_moe(const Keys& keys, GptConfig& gpt) {
  read_qwen_moe(keys, gpt);
  gpt.qk_layernorm = true;
  gpt.add_attention_linear_bias = keys.is_true("attention_bias");
  if (keys.is_true("use_sliding_window")) read_window(keys, gpt);
  for (const char* unused : {"sliding_window", "max_window_layers"}) keys.find(unused);
}

void write_qwen3_moe(const GptConfig& gpt, Json& json) {
  write_qwen_moe(gpt, json);
  json["attention_bias"] = gpt.attention_output_bias();
  write_window(gpt, json);
  json["use_sliding_window"] = gpt.window() != 0;
}

Family::Tensors tensors_of(bool shared) {
  Family::Tensors tensors = llama_tensors();
  tensors.experts = expert_tensors();
  if (!shared) return tensors;
  tensors.experts.shared_in = {"mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj"};
  tensors.experts.shared_out = "mlp.shared_expert.down_proj";
  tensors.experts.shared_gate = "mlp.shared_expert_gate";
  return tensors;
}

}  // namespace

Family::Tensors::Experts expert_tensors() {
  return {.router = "mlp.gate",
          .each = "mlp.experts.",
          .gate = "gate_proj",
          .up = "up_proj",
          .down = "down_proj"};
}

// Qwen 1.5 and 2 with experts, of which one, with a gate, is for all tokens.
const Family& qwen2_moe_family() {
  static const Family kFamily{.name = "Qwen 2 MoE",
                              .model_type = "qwen2_moe",
                              .architecture = "Qwen2MoeForCausalLM",
                              .other_names = {{"num_local_experts", "num_experts"}},
                              .defaults = class_defaults(qwen_moe_defaults(), R"({
        "intermediate_size": 5632, "num_attention_heads": 16, "num_key_value_heads": 16,
        "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632,
        "num_experts_per_tok": 4, "num_experts": 60, "qkv_bias": true})"),
                              .read = read_qwen2_moe,
                              .write = write_qwen2_moe,
                              .tensors = tensors_of(/*shared=*/true)};
  return kFamily;
}

// Qwen 3 with experts.
const Family& qwen3_moe_family() {
  static const Family kFamily{.name = "Qwen 3 MoE",
                              .model_type = "qwen3_moe",
                              .architecture = "Qwen3MoeForCausalLM",
                              .other_names = {{"num_local_experts", "num_experts"}},
                              .defaults = class_defaults(qwen_moe_defaults(), R"({
        "intermediate_size": 6144, "num_key_value_heads": 4, "moe_intermediate_size": 768,
        "num_experts_per_tok": 8, "num_experts": 128})"),
                              .read = read_qwen3_moe,
                              .write = write_qwen3_moe,
                              .tensors = tensors_of(/*shared=*/false)};
  return kFamily;
}

}  // namespace anymesh
