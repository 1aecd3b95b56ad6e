#include <algorithm>
#include <string>
#include <vector>

#include "tools/hf/gpt/family.h"

namespace anymesh {
namespace {

// Which layers have experts, a 0 or 1 for each.
std::vector<int> chosen_layers(const GptConfig& gpt) {
  std::vector<int> layers;
  for (int i = 0; i < gpt.num_layers; ++i) layers.push_back(gpt.has_experts(i) ? 1 : 0);
  return layers;
}

// Returns whether layers step - 1, 2 step - 1, ... have experts, and no others.
bool is_every(int step, const std::vector<int>& layers) {
  for (size_t i = 0; i < layers.size(); ++i)
    if (((i + 1) % static_cast<size_t>(step) == 0) != (layers[i] == 1)) return false;
  return true;
}

}  // namespace

void read_experts(const Keys& keys, GptConfig& gpt, const char* experts_name) {
  gpt.num_experts = keys.integer(experts_name);
  if (gpt.num_experts < 2)
    keys.fail(experts_name, gpt.num_experts,
              "at least 2, since a layer with one expert is an MLP here");
  gpt.moe_router_topk = keys.integer("num_experts_per_tok");
  for (const char* of_training :
       {"router_aux_loss_coef", "output_router_logits", "router_jitter_noise"})
    keys.find(of_training);
}

void write_experts(const GptConfig& gpt, Json& json, const char* experts_name) {
  json[experts_name] = gpt.num_experts;
  json["num_experts_per_tok"] = gpt.moe_router_topk;
}

void read_weights_of_experts(const Keys& keys, GptConfig& gpt) {
  gpt.moe_router_pre_softmax = !keys.is_true("norm_topk_prob");
}

void write_weights_of_experts(const GptConfig& gpt, Json& json) {
  json["norm_topk_prob"] = !gpt.moe_router_pre_softmax;
}

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

void write_expert_layers(const GptConfig& gpt, Json& json) {
  const std::vector<int> layers = chosen_layers(gpt);
  const auto first = std::ranges::find(layers, 1) - layers.begin();
  const int step = static_cast<int>(first) + 1;
  const bool regular = is_every(step, layers);
  json["decoder_sparse_step"] = regular ? step : 1;
  json["mlp_only_layers"] = Json::array();
  for (size_t i = 0; !regular && i < layers.size(); ++i)
    if (layers[i] == 0) json["mlp_only_layers"].push_back(i);
}

std::vector<int> shortest_layer_freq(const GptConfig& gpt) {
  std::vector<int> layers = chosen_layers(gpt);
  if (layers.empty() || layers[0] == 0) return layers;
  const auto step = std::find(layers.begin() + 1, layers.end(), 1) - layers.begin();
  for (size_t i = 0; i < layers.size(); ++i)
    if ((i % static_cast<size_t>(step) == 0) != (layers[i] == 1)) return layers;
  return {static_cast<int>(step)};
}

}  // namespace anymesh
