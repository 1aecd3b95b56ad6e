#include "tools/hf/gpt/family.h"

#include <algorithm>

namespace anymesh {

std::span<const Family* const> families() {
  static constexpr const Family* kFamilies[] = {
      &kGpt2, &kLlama,      &kBloom, &kMistral, &kQwen2,   &kQwen3,    &kGemma,    &kGptNeox,
      &kOpt,  &kStarcoder2, &kPhi3,  &kFalcon,  &kMixtral, &kQwen2Moe, &kQwen3Moe, &kOlmoe};
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

Json defaults_of(const Family& family) {
  Json defaults = family.parent ? defaults_of(*family.parent) : Json::object();
  defaults.update(Json::parse(family.defaults));
  return defaults;
}

Json tensors_of(const Family& family) {
  Json tensors = family.parent ? tensors_of(*family.parent) : Json{{"lm_head", "lm_head"}};
  tensors.update(Json::parse(family.tensors));
  return tensors;
}

void bind_attention_bias(Keys& keys, GptConfig& gpt) {
  bool bias = gpt.attention_output_bias();
  keys.bind("attention_bias", bias);
  gpt.add_attention_linear_bias = bias;
}

void bind_window(Keys& keys, GptConfig& gpt) {
  keys.put("sliding_window", gpt.window() == 0 ? Json() : Json(gpt.window()));
  if (!keys.find("sliding_window").is_null())
    gpt.window_size = std::to_string(keys.integer("sliding_window") - 1) + ",0";
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

void bind_activation(Keys& keys, const char* key, GptConfig& gpt, const char* tanh) {
  const bool is_tanh = gpt.activation() == GptConfig::Activation::kGeluTanh;
  keys.put(key, gpt.relu ? "relu" : is_tanh ? tanh : "gelu");
  const Json name = activation_of(keys, key, {"gelu", "gelu_pytorch_tanh", "gelu_new", "relu"});
  gpt.relu = name == "relu";
  gpt.bias_gelu_fusion = name == "gelu_pytorch_tanh";
}

void bind_dropout(Keys& keys, const char* embedding, const char* sublayers, GptConfig& gpt) {
  double other = gpt.hidden_dropout;
  keys.bind(embedding, other);
  keys.bind(sublayers, gpt.hidden_dropout);
  if (other != gpt.hidden_dropout)
    keys.fail(embedding, other,
              std::string("that of ") + sublayers + ", " + std::to_string(gpt.hidden_dropout) +
                  ": --hidden-dropout is for both (no weight depends on it, so it may be edited)");
}

}  // namespace anymesh
