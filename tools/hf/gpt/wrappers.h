#pragma once

#include <functional>
#include <string>

namespace anymesh {

// Returns the name without what trainers' wrappers around a model and inside it add, or as it is if
// the model has none such:
//
//   module._orig_mod.model.layers.0._checkpoint_wrapped_module.mlp   model.layers.0.mlp
std::string unwrapped(const std::string& stored,
                      const std::function<bool(const std::string&)>& is_known);

}  // namespace anymesh
