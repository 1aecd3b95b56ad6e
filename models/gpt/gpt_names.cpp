#include "models/gpt/gpt_names.h"

#include <charconv>
#include <string_view>

namespace anymesh {

std::string no_pipeline_name(const std::string& name, int num_layers) {
  constexpr std::string_view kTied = "tied_modules.embed.";
  const std::string model = "language_model.";
  if (name.starts_with(kTied)) return model + "embedding." + name.substr(kTied.size());
  int layer = 0;
  const char* const begin = name.data();
  const char* const dot = std::from_chars(begin, begin + name.size(), layer).ptr;
  const std::string rest = name.substr(static_cast<size_t>(dot - begin) + 1);
  if (layer == 1) return model + "embedding." + rest;
  if (layer == num_layers + 2) return model + "encoder.final_layernorm." + rest;
  if (layer == num_layers + 3) return model + "output_layer.weight";
  return model + "encoder.layers." + std::to_string(layer - 2) + "." + rest;
}

}  // namespace anymesh
