#include "tools/hf/gpt/weights.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "framework/util/errors.h"
#include "framework/util/printable.h"
#include "tools/hf/export.h"
#include "tools/hf/gpt/family.h"
#include "tools/hf/gpt/parameters.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;
using NameSet = std::set<std::string>;

// FSDP and torch.compile also wrap modules inside a model; the others wrap all of it.
constexpr std::string_view kInnerWrappers[] = {"_orig_mod.", "_fsdp_wrapped_module.",
                                               "_checkpoint_wrapped_module."};
constexpr std::string_view kWrappers[] = {"_forward_module.", "module.", "base_model.model.",
                                          "model."};

[[noreturn]] void fail_as_adapter(const fs::path& path) {
  throw DamagedFile(
      path.string() +
      ": is of an adapter of PEFT, not of a model. Merge it into its base model first: python3 -c "
      "'from peft import AutoPeftModelForCausalLM as P; P.from_pretrained(\"" +
      path.parent_path().string() +
      "\").merge_and_unload().save_pretrained(\"merged\")', and import merged");
}

void check_count(const fs::path& folder, size_t tensors, const GptConfig& gpt) {
  const auto require = [&](size_t least, const std::string& parts) {
    if (least > tensors)
      throw DamagedFile(folder.string() + ": " + std::to_string(tensors) +
                        " tensors, which are too few for the " + parts + " that its " +
                        kHfConfigFile + " has");
  };
  require(static_cast<size_t>(gpt.num_layers), std::to_string(gpt.num_layers) + " layers");
  size_t expert_layers = 0;
  for (int i = 0; i < gpt.num_layers; ++i) expert_layers += gpt.has_experts(i);
  require(
      expert_layers * static_cast<size_t>(gpt.num_experts),
      std::to_string(gpt.num_experts) + " experts of " + std::to_string(expert_layers) + " layers");
}

// Returns the name without what wrappers added, or as it is if the model has none such.
std::string unwrapped(const std::string& stored, const NameSet& known) {
  std::string name = stored;
  for (const std::string_view wrapper : kInnerWrappers)
    for (size_t at; (at = name.find(wrapper)) != std::string::npos;) name.erase(at, wrapper.size());
  while (!known.contains(name)) {
    const auto wrapper = std::ranges::find_if(
        kWrappers, [&](std::string_view prefix) { return name.starts_with(prefix); });
    if (wrapper == std::end(kWrappers)) return stored;
    name.erase(0, wrapper->size());
  }
  return name;
}

// Gives the weights the names that the model has. Returns a note, or "" if they had them.
std::string unwrap(const fs::path& folder, StoredWeights& weights, const NameSet& known) {
  std::string note;
  std::map<std::string, Value> tensors;
  for (const auto& [stored, tensor] : weights.tensors) {
    const std::string name = unwrapped(stored, known);
    if (!tensors.emplace(name, tensor).second)
      throw DamagedFile(folder.string() + ": has " + printable(name) + " twice, once as " +
                        printable(stored) + ", with a wrapper's prefix");
    if (note.empty() && name != stored)
      note = "names of tensors had what a trainer's wrapper adds: " + printable(stored) +
             " is taken as " + printable(name) + ", and others likewise";
  }
  weights.tensors = std::move(tensors);
  std::map<std::string, fs::path> absent;
  for (const auto& [stored, file] : weights.absent) absent[unwrapped(stored, known)] = file;
  weights.absent = std::move(absent);
  return note;
}

}  // namespace

std::string head_name(const HfModel& model) { return model.family->tensors.head + ".weight"; }

std::string bare_name(const std::string& name, const Family& family) {
  const std::string& base = family.tensors.base;
  return name.starts_with(base) ? name.substr(base.size()) : name;
}

void refuse_adapter(const fs::path& folder) {
  if (const fs::path config = folder / "adapter_config.json"; fs::exists(config))
    fail_as_adapter(config);
}

HfWeights open_hf_weights(const fs::path& folder, const HfModel& model) {
  if (checkpoint_kind(resolve_tag(folder)) != CheckpointReader::Kind::kWeights)
    throw DamagedFile(folder.string() + ": expected a folder of Hugging Face, found " +
                      open_checkpoint(folder, /*threads=*/1).description);
  StoredWeights weights = read_weights(folder);
  check_count(folder, weights.tensors.size() + weights.absent.size(), model.gpt);
  NameSet needed;
  for (const GptParameter& parameter : hf_parameters(model))
    for (const HfTensor& tensor : parameter.theirs)
      needed.insert({tensor.name, bare_name(tensor.name, *model.family)});
  NameSet known = needed;
  known.insert(head_name(model));
  std::vector<std::string> notes;
  if (!weights.inside.empty())
    notes.push_back(folder.string() + ": its weights are inside a trainer's file, under '" +
                    weights.inside + "'; the rest of it is left out");
  if (const std::string note = unwrap(folder, weights, known); !note.empty()) notes.push_back(note);
  for (const auto& [name, tensor] : weights.tensors)
    if (name.find(".lora_") != std::string::npos) fail_as_adapter(weights_entry(folder));
  std::erase_if(weights.absent, [&](const auto& item) { return !needed.contains(item.first); });
  return {reader_of(folder, weights), notes};
}

}  // namespace anymesh
