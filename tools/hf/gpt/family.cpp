#include "tools/hf/gpt/family.h"

#include <algorithm>

#include "tools/hf/gpt/families/families.h"

namespace anymesh {

std::span<const Family* const> families() {
  static const Family* const kFamilies[] = {
      &gpt2_family(),    &llama_family(),      &bloom_family(),     &mistral_family(),
      &qwen2_family(),   &qwen3_family(),      &gemma_family(),     &gpt_neox_family(),
      &opt_family(),     &starcoder2_family(), &phi3_family(),      &falcon_family(),
      &mixtral_family(), &qwen2_moe_family(),  &qwen3_moe_family(), &olmoe_family()};
  return kFamilies;
}

const Family* find_family(const std::string& model_type) {
  const auto found = std::ranges::find_if(
      families(), [&](const Family* family) { return family->model_type == model_type; });
  return found == families().end() ? nullptr : *found;
}

std::string why_refused(const std::string& model_type) {
  constexpr std::pair<const char*, const char*> kReasons[] = {
      {"gemma2",
       "it caps scores and logits softly, has windows in every second layer, and norms "
       "behind attention and MLP"},
      {"gemma3_text",
       "it has windows and another rotation in most layers, and norms behind "
       "attention and MLP"},
      {"phi", "its head has a bias, and a layer's attention and MLP share one norm"},
      {"gptj", "its head has a bias, and neighbouring elements turn together"}};
  for (const auto& [type, reason] : kReasons)
    if (model_type == type) return reason;
  return "";
}

void read_window(const Keys& keys, GptConfig& gpt, const Json& otherwise) {
  if (!keys.contains("sliding_window") && otherwise.is_null()) return;
  if (keys.contains("sliding_window") && keys.find({"sliding_window"}).is_null()) return;
  const int window = keys.integer({"sliding_window"}, otherwise);
  if (window < gpt.max_position_embeddings) gpt.window_size = std::to_string(window - 1) + ",0";
}

void write_window(const GptConfig& gpt, Json& json) {
  json["sliding_window"] = gpt.window() == 0 ? Json() : Json(gpt.window());
}

void read_layer_windows(const Keys& keys, GptConfig& gpt) {
  const bool used = keys.is_true("use_sliding_window", false);
  const Json types = keys.find({"layer_types"}),
             first = keys.at({"max_window_layers"}, gpt.num_layers);
  const auto windowed = [&](const Json& type) { return type == "sliding_attention"; };
  if (!first.is_number_integer()) keys.fail("max_window_layers", first, "an integer");
  if (!types.is_null() && !types.is_array()) keys.fail("layer_types", types, "a list");
  const bool by_type = types.is_array();
  const int64_t layers = gpt.num_layers,
                full = by_type ? layers - std::ranges::count_if(types, windowed)
                               : (used ? std::min<int64_t>(first.get<int64_t>(), layers) : layers);
  GptConfig with = gpt;
  if (full < layers) read_window(keys, with, Json());
  keys.find({"sliding_window"});
  if (with.window() != 0 && full != 0)
    keys.fail(by_type ? "layer_types" : "max_window_layers", by_type ? types : first,
              "windows in all layers or in none, since --window-size is for all");
  gpt = with;
}

void write_layer_windows(const GptConfig& gpt, Json& json) {
  write_window(gpt, json);
  json["use_sliding_window"] = gpt.window() != 0;
  json["max_window_layers"] = gpt.window() != 0 ? 0 : gpt.num_layers;
}

void read_activation(const Keys& keys, const char* key, const char* otherwise, GptConfig& gpt) {
  Json name = keys.at({key}, otherwise);
  constexpr const char* kTanh[] = {"gelu_new", "gelu_pytorch_tanh", "gelu_fast"};
  gpt.relu = name == "relu";
  gpt.bias_gelu_fusion = std::ranges::find(kTanh, name) != std::end(kTanh);
  if (!gpt.relu && !gpt.bias_gelu_fusion && name != "gelu")
    keys.fail(key, name,
              "\"gelu\", \"gelu_new\", \"gelu_pytorch_tanh\", \"gelu_fast\" or \"relu\", since "
              "pretrain_gpt's model has no other");
}

const char* activation_name(const GptConfig& gpt, const char* tanh) {
  if (gpt.relu) return "relu";
  return gpt.activation() == GptConfig::Activation::kGeluTanh ? tanh : "gelu";
}

void read_dropout(const Keys& keys, const char* embedding, const char* sublayers, double otherwise,
                  GptConfig& gpt) {
  gpt.hidden_dropout = keys.number(sublayers, otherwise);
  if (const double other = keys.number(embedding, otherwise); other != gpt.hidden_dropout)
    keys.fail(embedding, other,
              std::string("that of ") + sublayers + ", " + std::to_string(gpt.hidden_dropout) +
                  ": --hidden-dropout is for both (no weight depends on it, so it may be edited)");
}

}  // namespace anymesh
