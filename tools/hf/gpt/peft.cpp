#include "tools/hf/gpt/peft.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "framework/format/io.h"
#include "framework/util/errors.h"
#include "framework/util/format.h"
#include "framework/util/printable.h"
#include "models/gpt/lora.h"
#include "tools/hf/gpt/family.h"
#include "tools/hf/gpt/keys.h"
#include "tools/hf/gpt/parameters.h"
#include "tools/hf/gpt/wrappers.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

// Variants of LoRA, and what is trained beside it. No value but an empty one is taken.
constexpr const char* kVariants[] = {"use_dora",          "lora_bias",
                                     "use_qalora",        "use_bdlora",
                                     "modules_to_save",   "trainable_token_indices",
                                     "target_parameters", "layer_replication",
                                     "megatron_config",   "alora_invocation_tokens",
                                     "velora_config",     "kasa_config",
                                     "monteclora_config", "arrow_config"};

bool is_empty(const Json& value) {
  return value.is_null() || value == false || (value.is_structured() && value.empty());
}

// Throws unless all values of a pattern are that of the key without one.
void check_pattern(const Keys& keys, const char* pattern, const char* key, double value) {
  const Json values = keys.find(pattern);
  if (is_empty(values)) return;
  const std::string expected = "none, or " + std::string(key) +
                               " for all, as --lora-rank and --lora-alpha are for all modules";
  if (!values.is_object()) keys.fail(pattern, values, expected);
  for (const Json& other : values)
    if (!other.is_number() || other != value) keys.fail(pattern, values, expected);
}

// Reads the settings but for the targets, which the tensors tell: a regular expression would say
// the same.
Lora read_settings(const Keys& keys) {
  keys.one_of("peft_type", {"LORA"});
  keys.one_of("task_type", {nullptr, "CAUSAL_LM"});
  keys.one_of("bias", {"none"});
  for (const char* variant : kVariants)
    if (const Json value = keys.find(variant); !is_empty(value))
      keys.fail(variant, value, "null: adapters here are W + alpha / r B A alone");
  const Json init = keys.find("init_lora_weights");
  if (init.is_string() && init != "gaussian" && init != "orthogonal" && init != "eva")
    keys.fail("init_lora_weights", init,
              "true, false, \"gaussian\", \"orthogonal\" or \"eva\": others change the base model, "
              "and PEFT's save_pretrained(path_initial_model_for_weight_conversion=...) makes an "
              "adapter of the unchanged one");
  Lora lora{.rank = keys.integer("r"),
            .alpha = keys.number("lora_alpha"),
            .dropout = keys.number("lora_dropout")};
  check_pattern(keys, "rank_pattern", "r", lora.rank);
  check_pattern(keys, "alpha_pattern", "lora_alpha", lora.alpha);
  if (keys.is_true("use_rslora")) {
    lora.alpha *= std::sqrt(lora.rank);
    keys.note("use_rslora scales by lora_alpha / sqrt(r), which is --lora-alpha " +
              string_printf("%.17g", lora.alpha));
  }
  keys.ignore({"target_modules", "exclude_modules", "layers_to_transform", "layers_pattern",
               "fan_in_fan_out", "inference_mode", "base_model_name_or_path", "revision",
               "peft_version", "auto_mapping", "megatron_core", "loftq_config", "eva_config",
               "corda_config", "lora_ga_config", "qalora_group_size", "ensure_weight_tying"});
  return lora;
}

Keys keys_of(const fs::path& folder) {
  const fs::path file = folder / kPeftConfigFile;
  if (!fs::exists(file))
    throw DamagedFile(file.string() + ": no such file; expected an adapter of PEFT (--adapter)");
  Keys keys(file);
  keys.assume({}, {{"r", 8},
                   {"lora_alpha", 8},
                   {"lora_dropout", 0.0},
                   {"use_rslora", false},
                   {"bias", "none"},
                   {"task_type", nullptr}});
  return keys;
}

Checkpoint open_weights(const fs::path& folder) {
  if (fs::exists(folder / kLatestFile)) return open_checkpoint(folder, write_threads());
  for (const char* suffix : {".safetensors", ".bin"})
    if (const fs::path file = folder / (std::string(kPeftWeights) + suffix); fs::exists(file))
      return open_checkpoint(file, write_threads());
  throw DamagedFile(folder.string() + ": has no " + kPeftWeights + ".safetensors, no " +
                    kPeftWeights +
                    ".bin and no DeepSpeed checkpoint. It holds: " + list_folder(folder));
}

// Returns the last `count` parts of a name with dots.
std::string last_parts(const std::string& name, int count) {
  size_t at = name.size();
  while (count-- > 0 && at != std::string::npos && at > 0) at = name.rfind('.', at - 1);
  return at == std::string::npos ? name : name.substr(at + 1);
}

// Whether PEFT takes the module for one that the target_modules name.
bool is_chosen(const std::string& module, const Json& targets) {
  return !targets.is_array() || std::ranges::any_of(targets, [&](const Json& target) {
    return target.is_string() && (module == target.get<std::string>() ||
                                  module.ends_with("." + target.get<std::string>()));
  });
}

// The factors of an adapter, by module.
class Stored {
 public:
  Stored(const Checkpoint& weights, const HfModel& base, const Json& targets)
      : weights_(weights), base_(base), parts_(lora_parts(base)) {
    for (size_t i = 0; i < parts_.size(); ++i)
      if (!parts_[i].module.empty()) by_module_[parts_[i].module] = i;
    for (const std::string& name : weights.names()) take(name, targets);
    if (names_.empty()) fail("has no lora_A and lora_B of a layer");
  }

  std::vector<std::string> targets() const {
    std::vector<std::string> targets;
    for (const LoraMatrix& matrix : lora_matrices(base_.gpt))
      for (const std::string& part : matrix.parts)
        if (chosen_.contains(part)) targets.push_back(part);
    return targets;
  }
  // Returns the stored name of a factor. Each target has it in all layers.
  std::string name_of(const LoraPart& part, const char* end, const Json& layers) const {
    const auto found = names_.find(part.module + end);
    if (found == names_.end())
      fail("has no " + part.module + end + ", but " + chosen_.at(part.target) + "; expected " +
           last_parts(part.module, 1) + " of all layers" +
           (layers.is_null() ? "" : " (layers_to_transform is " + layers.dump() + ")"));
    return found->second;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw DamagedFile(weights_.path.string() + ": " + printable_message(what));
  }

  // Takes a tensor for what its name says. Frozen weights of the base model may be beside.
  void take(const std::string& stored, const Json& targets) {
    size_t at = std::string::npos;
    const char* end = nullptr;
    for (const char* factor : {kLoraA, kLoraB}) {
      const std::string begin = std::string(factor).substr(0, std::string(factor).rfind('.') + 1);
      if (const size_t found = stored.rfind(begin);
          found != std::string::npos && stored.ends_with(".weight"))
        at = found, end = factor;
    }
    if (!end) return check_frozen(stored);
    const auto is_known = [&](const std::string& name) { return by_module_.contains(name); };
    const std::string module = unwrapped(stored.substr(0, at), is_known);
    const auto part = by_module_.find(module);
    if (part == by_module_.end()) fail("has " + stored + "; expected adapters of " + modules());
    if (!is_chosen(module, targets))
      fail("has " + stored + ", which target_modules " + targets.dump().substr(0, 200) +
           " leaves out; expected its modules alone");
    const auto [known, is_new] = names_.emplace(module + end, stored);
    if (!is_new)
      fail("has " + module + end + " twice, as " + known->second + " and as " + stored +
           "; expected one adapter");
    chosen_.try_emplace(parts_[part->second].target, stored);
  }

  void check_frozen(const std::string& stored) const {
    const bool trained = weights_.kind == Checkpoint::Kind::kWeights ||
                         stored.find("lora_") != std::string::npos ||
                         weights_.parameter(stored).has_moments();
    if (trained) fail("has " + stored + "; expected lora_A and lora_B of a layer's matrices alone");
  }

  // Names the modules that can have adapters, and the families that have more of them.
  std::string modules() const {
    std::set<std::string> ends;
    bool fused = false;
    for (const LoraPart& part : parts_) {
      if (part.module.empty())
        fused = true;
      else
        ends.insert(last_parts(part.module, 2));
    }
    std::string text = joined({ends.begin(), ends.end()}) + " in " + base_.family->name;
    if (!fused) return text;
    std::vector<std::string> apart;
    for (const Family* family : families())
      if (tensors_of(*family).at("self_attention.query_key_value").is_array())
        apart.emplace_back(family->name);
    return text + ", whose q, k and v are one matrix; they have adapters in " + joined(apart);
  }

  const Checkpoint& weights_;
  const HfModel& base_;
  std::vector<LoraPart> parts_;
  std::map<std::string, size_t> by_module_;
  std::map<std::string, std::string> names_;   // stored, by module and kLoraA or kLoraB
  std::map<std::string, std::string> chosen_;  // targets, with a stored name of each
};

}  // namespace

int64_t PeftAdapter::iteration() const {
  return has_states() ? weights.metadata.at(keys::kGlobalSteps).as_int() : 0;
}

PeftAdapter open_peft(const fs::path& folder, const HfModel& base) {
  const Keys keys = keys_of(folder);
  PeftAdapter adapter{.sources = SourceFiles(resolve_tag(folder)), .lora = read_settings(keys)};
  adapter.weights = open_weights(folder);
  const Json targets = keys.find("target_modules");
  if (!targets.is_null() && !targets.is_string() && !targets.is_array())
    keys.fail("target_modules", targets, "a list of modules, a text or null");
  const Stored stored(adapter.weights, base, targets);
  adapter.lora.targets = stored.targets();
  adapter.parts = lora_parts(base, adapter.lora);
  adapter.parameters = lora_parameters(adapter.parts, adapter.lora.rank);
  for (size_t i = 0; i < adapter.parameters.size(); ++i) {
    HfParameter& parameter = adapter.parameters[i];
    parameter.theirs = {{stored.name_of(adapter.parts[i / 2], i % 2 == 0 ? kLoraA : kLoraB,
                                        keys.find("layers_to_transform")),
                         parameter.shape}};
  }
  adapter.notes = keys.notes();
  if (adapter.weights.kind != Checkpoint::Kind::kWeights)
    adapter.notes.push_back("the adapter is of an " + adapter.weights.description +
                            (adapter.has_states() ? ", with its optimizer's states"
                                                  : ", without its optimizer's states: " +
                                                        adapter.weights.states_refused));
  if (const std::vector<std::string> unknown = keys.unused(); !unknown.empty())
    adapter.notes.push_back(
        std::string(kPeftConfigFile) +
        " has keys that are not known here and had no effect: " + printable(joined(unknown), 1000));
  return adapter;
}

std::string peft_config_text(const HfModel& model, const Lora& lora, const std::string& base) {
  std::set<std::string> adapted, targets;
  std::map<std::string, int> others;  // last parts of names that have no adapter
  for (const LoraPart& part : lora_parts(model, lora)) adapted.insert(part.module);
  for (const HfParameter& parameter : hf_parameters(model))
    for (const HfTensor& tensor : parameter.theirs)
      if (const std::string module = tensor.name.substr(0, tensor.name.rfind('.'));
          !adapted.contains(module))
        ++others[last_parts(module, 1)];
  for (const std::string& module : adapted)
    targets.insert(last_parts(module, others.contains(last_parts(module, 1)) ? 2 : 1));
  const bool whole = lora.alpha == std::floor(lora.alpha) && std::abs(lora.alpha) < 1e9;
  const Json json = {
      {"base_model_name_or_path", base},
      {"bias", "none"},
      {"fan_in_fan_out", model.family->transposed},
      {"inference_mode", true},
      {"init_lora_weights", true},
      {"lora_alpha", whole ? Json(static_cast<int64_t>(lora.alpha)) : Json(lora.alpha)},
      {"lora_dropout", lora.dropout},
      {"peft_type", "LORA"},
      {"r", lora.rank},
      {"target_modules", targets},
      {"task_type", "CAUSAL_LM"}};
  return json.dump(2) + "\n";
}

}  // namespace anymesh
