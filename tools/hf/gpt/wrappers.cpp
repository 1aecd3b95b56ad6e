#include "tools/hf/gpt/wrappers.h"

#include <algorithm>
#include <string_view>

namespace anymesh {
namespace {

// FSDP and torch.compile also wrap modules inside a model; the others wrap all of it.
constexpr std::string_view kInnerWrappers[] = {"_orig_mod.", "_fsdp_wrapped_module.",
                                               "_checkpoint_wrapped_module."};
constexpr std::string_view kWrappers[] = {"_forward_module.", "module.", "base_model.model.",
                                          "model."};

}  // namespace

std::string unwrapped(const std::string& stored,
                      const std::function<bool(const std::string&)>& is_known) {
  std::string name = stored;
  for (const std::string_view wrapper : kInnerWrappers)
    for (size_t at; (at = name.find(wrapper)) != std::string::npos;) name.erase(at, wrapper.size());
  while (!is_known(name)) {
    const auto wrapper = std::ranges::find_if(
        kWrappers, [&](std::string_view prefix) { return name.starts_with(prefix); });
    if (wrapper == std::end(kWrappers)) return stored;
    name.erase(0, wrapper->size());
  }
  return name;
}

}  // namespace anymesh
