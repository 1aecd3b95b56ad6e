// The families with experts, which descend from Llama too.
#include <algorithm>

#include "tools/hf/gpt/family.h"

namespace anymesh {
namespace {

// Returns which layers have experts, a 0 or 1 for each.
std::vector<int> chosen_layers(const GptConfig& gpt) {
  std::vector<int> layers;
  for (int i = 0; i < gpt.num_layers; ++i) layers.push_back(gpt.has_experts(i) ? 1 : 0);
  return layers;
}

// Binds how many experts a layer has and a token goes to. The factors of routers' losses and noise
// are left out both ways: transformers' loss is another than ours (experts.h), and it adds it only
// on demand (output_router_logits).
void bind_experts(Keys& keys, GptConfig& gpt, const char* count = "num_experts") {
  keys.bind(count, gpt.num_experts);
  if (gpt.num_experts < 2)
    keys.fail(count, gpt.num_experts, "at least 2, since a layer with one expert is an MLP here");
  keys.bind("num_experts_per_tok", gpt.moe_router_topk);
  keys.ignore({"router_aux_loss_coef", "output_router_logits", "router_jitter_noise"});
}

// Binds whether the weights of a token's experts add up to 1.
void bind_weights_of_experts(Keys& keys, GptConfig& gpt) {
  keys.bind_not("norm_topk_prob", gpt.moe_router_pre_softmax);
}

// Reads which layers have experts, by Qwen's decoder_sparse_step and mlp_only_layers.
void read_expert_layers(const Keys& keys, GptConfig& gpt) {
  const int step = keys.integer("decoder_sparse_step");
  const Json dense = keys.at("mlp_only_layers", Json::array());
  if (!dense.is_array()) keys.fail("mlp_only_layers", dense, "a list of layers");
  if (step == 1 && dense.empty()) return;
  constexpr int kMost = 1 << 16;  // as a list has an item for each
  if (gpt.num_layers > kMost)
    keys.fail("num_hidden_layers", gpt.num_layers,
              "at most " + std::to_string(kMost) + " where not all layers have experts");
  gpt.moe_layer_freq.clear();
  for (int i = 0; i < gpt.num_layers; ++i) gpt.moe_layer_freq.push_back((i + 1) % step == 0);
  for (const Json& item : dense) {
    if (!item.is_number_integer()) keys.fail("mlp_only_layers", dense, "a list of layers");
    const auto layer = item.get<int64_t>();  // one that the model lacks has no effect
    if (layer >= 0 && layer < gpt.num_layers) gpt.moe_layer_freq[static_cast<size_t>(layer)] = 0;
  }
  if (std::ranges::count(gpt.moe_layer_freq, 1) == 0)
    keys.fail("mlp_only_layers", dense, "at least one layer with experts, by decoder_sparse_step");
  gpt.moe_layer_freq = shortest_layer_freq(gpt);
}

void write_expert_layers(const GptConfig& gpt, Keys& keys) {
  const std::vector<int> layers = chosen_layers(gpt);
  const int step = static_cast<int>(std::ranges::find(layers, 1) - layers.begin()) + 1;
  Json dense = Json::array();
  bool regular = true;  // layers step - 1, 2 step - 1, ... have experts, and no others
  for (int i = 0; i < gpt.num_layers; ++i) {
    const bool has = gpt.has_experts(i);
    if (!has) dense.push_back(i);
    regular &= has == ((i + 1) % step == 0);
  }
  keys.put("decoder_sparse_step", regular ? step : 1);
  keys.put("mlp_only_layers", regular ? Json::array() : dense);
}

void bind_qwen_moe(Keys& keys, GptConfig& gpt) {
  bind_llama(keys, gpt);
  bind_experts(keys, gpt);
  keys.bind("moe_intermediate_size", gpt.moe_ffn_hidden_size);
  bind_weights_of_experts(keys, gpt);
  if (keys.writes())
    write_expert_layers(gpt, keys);
  else
    read_expert_layers(keys, gpt);
}

void bind_qwen2_moe(Keys& keys, GptConfig& gpt) {
  int& shared = gpt.moe_shared_expert_intermediate_size;
  keys.set(gpt.moe_shared_expert_gate, true);
  bind_qwen_moe(keys, gpt);
  if (!keys.writes() || shared > 0)  // else it has the class's, and does not fit
    keys.bind("shared_expert_intermediate_size", shared);
  bool bias = gpt.qkv_bias();
  keys.bind("qkv_bias", bias);
  gpt.add_qkv_bias = bias;
  keys.always("use_sliding_window", false);  // true: in every second layer
  keys.ignore({"sliding_window", "max_window_layers"});
  const Json types = keys.find("layer_types");
  if (std::ranges::any_of(types, [](const Json& type) { return type != "full_attention"; }))
    keys.fail("layer_types", types, "\"full_attention\" alone, as use_sliding_window is false");
}

void bind_qwen3_moe(Keys& keys, GptConfig& gpt) {
  keys.set(gpt.qk_layernorm, true);
  bind_qwen_moe(keys, gpt);
  bind_attention_bias(keys, gpt);
  if (keys.writes() || keys.is_true("use_sliding_window")) bind_window(keys, gpt);
  keys.put("use_sliding_window", gpt.window() != 0);
  keys.ignore({"sliding_window", "max_window_layers"});
}

void bind_mixtral(Keys& keys, GptConfig& gpt) {
  bind_llama(keys, gpt);
  keys.put("intermediate_size", gpt.moe_ffn_size());
  bind_window(keys, gpt);
  bind_experts(keys, gpt, "num_local_experts");
}

void bind_olmoe(Keys& keys, GptConfig& gpt) {
  for (bool* always : {&gpt.qk_layernorm, &gpt.qk_layernorm_all_heads}) keys.set(*always, true);
  bind_llama(keys, gpt);
  keys.drop("head_dim");
  keys.put("intermediate_size", gpt.moe_ffn_size());
  bind_experts(keys, gpt);
  bind_weights_of_experts(keys, gpt);
  bind_attention_bias(keys, gpt);
  if (const Json limit = keys.find("clip_qkv"); !limit.is_null())
    keys.fail("clip_qkv", limit, "null: queries, keys and values have no limit here");
  if (!keys.writes() && gpt.kv_channels != 0)
    keys.fail("head_dim", gpt.kv_channels,
              "hidden_size / num_attention_heads, since its norms have that width");
}

}  // namespace

std::vector<int> shortest_layer_freq(const GptConfig& gpt) {
  std::vector<int> layers = chosen_layers(gpt);
  if (layers.empty() || layers[0] == 0) return layers;
  const auto step = std::find(layers.begin() + 1, layers.end(), 1) - layers.begin();
  for (size_t i = 0; i < layers.size(); ++i)
    if ((i % static_cast<size_t>(step) == 0) != (layers[i] == 1)) return layers;
  return {static_cast<int>(step)};
}

// Mixtral: a Mistral with experts in all layers.
constexpr Family kMixtral{.name = "Mixtral",
                          .model_type = "mixtral",
                          .architecture = "MixtralForCausalLM",
                          .other_names = {{{"num_experts", "num_local_experts"}}},
                          .parent = &kMistral,
                          .defaults = R"({
        "sliding_window": null, "rms_norm_eps": 1e-5, "rope_theta": 1000000.0,
        "num_experts_per_tok": 2, "num_local_experts": 8})",
                          .bind = bind_mixtral,
                          .tensors = R"({"mlp.router.gate": "block_sparse_moe.gate",
        "mlp.experts": "block_sparse_moe.experts.", "mlp.experts.w1": "w1", "mlp.experts.w2": "w2",
        "mlp.experts.w3": "w3"})",
                          .experts = true};

// Qwen 1.5 and 2 with experts, of which one, with a gate, is for all tokens.
constexpr Family kQwen2Moe{
    .name = "Qwen 2 MoE",
    .model_type = "qwen2_moe",
    .architecture = "Qwen2MoeForCausalLM",
    .other_names = {{{"num_local_experts", "num_experts"}}},
    .parent = &kQwen2,
    .defaults = R"({
        "hidden_size": 2048, "num_hidden_layers": 24, "intermediate_size": 5632,
        "num_attention_heads": 16, "num_key_value_heads": 16, "decoder_sparse_step": 1,
        "norm_topk_prob": false, "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632, "num_experts_per_tok": 4, "num_experts": 60,
        "qkv_bias": true})",
    .bind = bind_qwen2_moe,
    .tensors = R"({"mlp.router.gate": "mlp.gate", "mlp.experts": "mlp.experts.",
        "mlp.experts.w1": "gate_proj", "mlp.experts.w2": "down_proj", "mlp.experts.w3": "up_proj",
        "mlp.shared_experts.dense_h_to_4h":
        ["mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj"],
        "mlp.shared_experts.dense_4h_to_h": "mlp.shared_expert.down_proj",
        "mlp.shared_experts_gate": "mlp.shared_expert_gate"})",
    .experts = true};

// Qwen 3 with experts.
constexpr Family kQwen3Moe{.name = "Qwen 3 MoE",
                           .model_type = "qwen3_moe",
                           .architecture = "Qwen3MoeForCausalLM",
                           .other_names = kQwen2Moe.other_names,
                           .parent = &kQwen2Moe,
                           .defaults = R"({
        "intermediate_size": 6144, "num_attention_heads": 32, "num_key_value_heads": 4,
        "moe_intermediate_size": 768, "num_experts_per_tok": 8, "num_experts": 128})",
                           .bind = bind_qwen3_moe,
                           .experts = true};

// OLMoE: a Llama with experts in all layers, and norms of all heads of queries and of keys.
constexpr Family kOlmoe{.name = "OLMoE",
                        .model_type = "olmoe",
                        .architecture = "OlmoeForCausalLM",
                        .other_names = kQwen2Moe.other_names,
                        .parent = &kLlama,
                        .defaults = R"({
        "vocab_size": 50304, "hidden_size": 2048, "intermediate_size": 2048,
        "num_hidden_layers": 16, "num_attention_heads": 16, "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5, "num_experts_per_tok": 8, "num_experts": 64,
        "norm_topk_prob": false})",
                        .bind = bind_olmoe,
                        .tensors = kQwen2Moe.tensors,
                        .experts = true};

}  // namespace anymesh
