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

Json class_defaults(const char* own) { return Json::parse(own); }

Json class_defaults(Json others, const char* own) {
  others.update(class_defaults(own));
  return others;
}

void read_window(const Keys& keys, GptConfig& gpt) {
  if (keys.find("sliding_window").is_null()) return;
  gpt.window_size = std::to_string(keys.integer("sliding_window") - 1) + ",0";
}

void write_window(const GptConfig& gpt, Json& json) {
  json["sliding_window"] = gpt.window() == 0 ? Json() : Json(gpt.window());
}

void read_layer_windows(const Keys& keys, GptConfig& gpt, int64_t full) {
  const int64_t layers = gpt.num_layers;
  const Json types = keys.find("layer_types");
  if (!types.is_null()) {
    const auto of = [&](const std::vector<Json>& kinds) {
      return std::ranges::count_if(
          types, [&](const Json& type) { return std::ranges::find(kinds, type) != kinds.end(); });
    };
    full = of({"full_attention", "attention"});
    if (!types.is_array() || std::ssize(types) != layers ||
        full + of({"sliding_attention"}) != layers)
      keys.fail("layer_types", types,
                "\"full_attention\" or \"sliding_attention\" for each of " +
                    std::to_string(layers) + " layers");
  }
  GptConfig windowed = gpt;
  if (full < layers) read_window(keys, windowed);
  keys.find("sliding_window");
  if (windowed.window() == 0 && full < layers && !types.is_null())
    keys.fail("sliding_window", Json(), "a number, as layer_types has \"sliding_attention\"");
  if (windowed.window() == 0) return;
  const char* const key = types.is_null() ? "max_window_layers" : "layer_types";
  if (full > 0)
    keys.fail(key, keys.find(key),
              "windows in all layers or in none, since --window-size is for all");
  gpt = windowed;
}

Json activation_of(const Keys& keys, const char* key, const std::vector<Json>& known) {
  constexpr std::pair<const char*, const char*> kSame[] = {
      {"swish", "silu"},
      {"gelu_python", "gelu"},
      {"gelu_fast", "gelu_pytorch_tanh"},
      {"gelu_accurate", "gelu_pytorch_tanh"},
      {"gelu_python_tanh", "gelu_pytorch_tanh"},
      {"gelu_new", "gelu_pytorch_tanh"}};
  const Json name = keys.find(key);
  for (const auto& [same, usual] : kSame)
    if (name == same && std::ranges::find(known, usual) != known.end()) return usual;
  return keys.one_of(key, known);
}

void read_activation(const Keys& keys, const char* key, GptConfig& gpt) {
  const Json name = activation_of(keys, key, {"gelu", "gelu_pytorch_tanh", "gelu_new", "relu"});
  gpt.relu = name == "relu";
  gpt.bias_gelu_fusion = name == "gelu_pytorch_tanh";
}

const char* activation_name(const GptConfig& gpt, const char* tanh) {
  if (gpt.relu) return "relu";
  return gpt.activation() == GptConfig::Activation::kGeluTanh ? tanh : "gelu";
}

void read_dropout(const Keys& keys, const char* embedding, const char* sublayers, GptConfig& gpt) {
  gpt.hidden_dropout = keys.number(sublayers);
  if (const double other = keys.number(embedding); other != gpt.hidden_dropout)
    keys.fail(embedding, other,
              std::string("that of ") + sublayers + ", " + std::to_string(gpt.hidden_dropout) +
                  ": --hidden-dropout is for both (no weight depends on it, so it may be edited)");
}

}  // namespace anymesh
