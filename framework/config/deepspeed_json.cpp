#include "framework/config/deepspeed_json.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "framework/config/foreign_flags.h"
#include "framework/util/errors.h"
#include "framework/util/input_file.h"
#include "framework/util/printable.h"

namespace anymesh {
namespace {

using Json = nlohmann::json;

struct FlagKey {
  std::string_view path, flag;
};
constexpr FlagKey kFlagKeys[] = {
    {"train_batch_size", "global-batch-size"},
    {"train_micro_batch_size_per_gpu", "micro-batch-size"},
    {"gradient_clipping", "clip-grad"},
    {"zero_optimization.stage", "zero-stage"},
    {"zero_optimization.offload_optimizer.device", "offload-optimizer"},
    {"zero_optimization.offload_optimizer.nvme_path", "nvme-path"},
    {"zero_optimization.offload_param.device", "offload-param"},
    {"zero_optimization.offload_param.nvme_path", "nvme-path"},
    {"bf16.enabled", "bf16"},
    {"fp16.enabled", "fp16"},
    {"fp16.loss_scale", "loss-scale"},
    {"fp16.loss_scale_window", "loss-scale-window"},
    {"fp16.hysteresis", "hysteresis"},
    {"fp16.min_loss_scale", "min-loss-scale"},
    {"optimizer.params.lr", "lr"},
    {"optimizer.params.eps", "adam-eps"},
    {"optimizer.params.weight_decay", "weight-decay"},
    {"checkpoint.load_universal", "universal-checkpoint"},
    {"zero_optimization.stage3_gather_16bit_weights_on_model_save", "save-16bit-model"},
    {"zero_optimization.stage3_gather_fp16_weights_on_model_save", "save-16bit-model"},
};

// Keys without a flag, one a line, that are accepted with the values that hold here anyway. The
// accepted values are JSON texts.
constexpr Foreign kFixedKeys[] = {
    {"fp16.consecutive_hysteresis", true, "hysteresis refills with the scale alone", "false"},
    {"data_types.grad_accum_dtype", true, "gradients are accumulated in fp32",
     "\"fp32\"|\"float32\"|null"},
    {"communication_data_type", true, "gradients are reduced in fp32", "\"fp32\"|null"},
    {"prescale_gradients", true, "gradients are reduced first and scaled afterwards", "false"},
    {"optimizer.params.adam_w_mode", true, "the optimizer is AdamW", "true"},
    {"optimizer.params.dampening", true, "SGD's momentum has no dampening", "0|0.0"},
    {"optimizer.params.nesterov", true, "SGD's momentum is the plain one", "false"},
    {"optimizer.params.per_head_muon", true, "Muon sees a matrix as a whole", "false"},
    {"optimizer.params.ns_method", true, "Muon iterates by the standard method", "\"standard\""},
    {"optimizer.params.bias_correction", true, "Adam always corrects its bias", "true"},
    {"optimizer.params.amsgrad", true, "AMSGrad is not in this version", "false"},
};

constexpr std::string_view kHalfSums = "\"bf16\"|\"bfloat16\"|\"fp16\"|\"float16\"|\"half\"";

// Keys about speed and logs, by section.
struct IgnoredKeys {
  std::string_view section, names;  // names separated by '|'
};
constexpr IgnoredKeys kIgnoredKeys[] = {
    {"",
     "steps_per_print|wall_clock_breakdown|memory_breakdown|dump_state|flops_profiler|"
     "comms_logger|tensorboard|wandb|csv_monitor|aio|activation_checkpointing|sparse_gradients|"
     "disable_allgather|zero_allow_untested_optimizer|zero_force_ds_cpu_optimizer"},
    {"fp16.", "auto_cast"},
    {"optimizer.params.", "torch_adam"},
    {"zero_optimization.",
     "allgather_partitions|allgather_bucket_size|overlap_comm|reduce_scatter|"
     "reduce_bucket_size|contiguous_gradients|round_robin_gradients|ignore_unused_parameters|"
     "sub_group_size|stage3_prefetch_bucket_size|stage3_max_live_parameters|"
     "stage3_max_reuse_distance|stage3_param_persistence_threshold|"
     "stage3_model_persistence_threshold|stage3_module_granularity_threshold|"
     "stage3_use_all_reduce_for_fetch_params|stage3_allgather_sequential"},
    {"zero_optimization.offload_optimizer.",
     "pin_memory|buffer_count|pipeline_read|pipeline_write|fast_init|ratio|super_offload|"
     "cpuadam_cores_perc"},
    {"zero_optimization.offload_param.", "pin_memory|buffer_count|buffer_size|max_in_cpu"},
};

// Whether a known key lies in this section.
bool is_section(const std::string& path) {
  const auto is_inside = [&](std::string_view key) { return key.starts_with(path + "."); };
  return std::ranges::any_of(kFlagKeys, is_inside, &FlagKey::path) ||
         std::ranges::any_of(kFixedKeys, is_inside, &Foreign::names) ||
         std::ranges::any_of(kIgnoredKeys, is_inside, &IgnoredKeys::section);
}

bool is_ignored(std::string_view key) {
  const size_t name = key.rfind('.') + 1;  // 0 if the key is in no section
  return std::ranges::any_of(kIgnoredKeys, [&](const IgnoredKeys& ignored) {
    return ignored.section == key.substr(0, name) && is_one_of(key.substr(name), ignored.names);
  });
}

// DeepSpeed's names of optimizers, in lower case, and --optimizer's.
constexpr std::pair<std::string_view, std::string_view> kOptimizers[] = {
    {"adamw", "adam"}, {"adam", "adam"}, {"fusedadam", "adam"},
    {"sgd", "sgd"},    {"lion", "lion"}, {"muon", "muon"}};

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

// nlohmann/json keeps the last of two equal keys. DeepSpeed refuses them, and so do we.
Json parse_file(const std::string& path) {
  constexpr size_t kMost = 256 << 10;  // the parser's time is quadratic in the number of objects
  std::string text;
  try {
    text = read_file(path);
  } catch (const std::exception& error) {
    throw UserError(std::string("--deepspeed_config ") + error.what());
  }
  if (text.size() > kMost) {
    throw UserError("--deepspeed_config " + path + ": has " + std::to_string(text.size()) +
                    " bytes, expected at most " + std::to_string(kMost));
  }
  std::vector<std::set<std::string>> open_objects;
  const auto refuse_repeats = [&](int, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start) open_objects.emplace_back();
    if (event == Json::parse_event_t::object_end) open_objects.pop_back();
    if (event == Json::parse_event_t::key) {
      const std::string key = parsed.get<std::string>();
      if (!open_objects.back().insert(key).second) {
        throw UserError(path + ": the key \"" + printable(key) + "\" is given twice in one object");
      }
    }
    return true;
  };
  try {
    return Json::parse(text, refuse_repeats);
  } catch (const Json::parse_error& error) {
    const std::string what = error.what();  // "[json.exception...] parse error at line 1, ..."
    throw UserError(path + ": byte " + std::to_string(error.byte) + ": " +
                    what.substr(std::min(what.size(), what.find("] ") + 2)));
  } catch (const Json::exception& error) {
    throw UserError(path + ": " + error.what());
  }
}

// Whether a key of this section has this value. Compares it in place, because it may be nested
// without limit.
bool has(const Json& section, const char* key, const Json& value) {
  const auto found = section.find(key);
  return found != section.end() && *found == value;
}

// The JSON text of a value. An object or array gives only its type, because it may be nested
// without limit.
std::string text_of(const Json& value) {
  return value.is_structured() ? value.type_name() : value.dump();
}

struct Reader {
  const std::string& path;
  FlagTable& flags;
  Config& config;
  std::vector<std::string> ignored = {}, notes = {};

  void read_section(const Json& section, const std::string& prefix) {
    if (prefix == "optimizer.") read_optimizer(section);
    for (const auto& [name, value] : section.items()) {
      const std::string key = prefix + name;
      if (is_section(key)) {
        expect(value.is_object(), key, value, "an object");
        read_section(value, key + ".");
      } else if (is_off(section, prefix, name)) {
        ignored.push_back(key);
      } else {
        read_key(key, value);
      }
    }
    if (prefix != "fp16." || !fp16_is_on(section) || flags.given("initial-loss-scale")) return;
    const bool is_dynamic = section.contains("loss_scale")
                                ? has(section, "loss_scale", 0)
                                : config.precision.loss_scale.value_or(0) == 0;
    if (is_dynamic)  // the dynamic scale starts at 2^16 in DeepSpeed, at 2^32 in Megatron
      read_scale_power("fp16.initial_scale_power (default)", Json(16u));
  }

  // Whether a key is switched off: fp16 settings while fp16 is disabled, and nvme_path while the
  // device is not nvme. Configs usually keep both for later. A flag decides where the section says
  // nothing.
  bool is_off(const Json& section, const std::string& prefix, const std::string& name) const {
    if (prefix == "fp16.") return name != "enabled" && !fp16_is_on(section);
    if (name != "nvme_path" || !prefix.starts_with("zero_optimization.offload_")) return false;
    const OffloadConfig& said = config.engine.zero.offload;
    const std::string& flag = prefix.ends_with("optimizer.") ? said.optimizer : said.param;
    return section.contains("device") ? !has(section, "device", "nvme") : flag != "nvme";
  }

  bool fp16_is_on(const Json& section) const {
    return section.contains("enabled") ? !has(section, "enabled", false) : config.precision.fp16;
  }

  void read_key(const std::string& key, const Json& value) {
    const bool is_rate = is_one_of(key, "optimizer.params.muon_lr|optimizer.params.adam_lr");
    if (key == "optimizer.type" || (is_rate && optimizer() == "muon")) return;  // read_optimizer()
    if (const auto* it = std::ranges::find(kFlagKeys, std::string_view(key), &FlagKey::path);
        it != std::end(kFlagKeys)) {
      expect(!value.is_structured(), key, value, "one value");
      const bool takes_text = std::holds_alternative<std::string*>(flags.find(it->flag)->field);
      expect(!takes_text || value.is_string(), key, value, "a text");
      flags.set(it->flag, origin(key, value),
                {takes_text ? value.get<std::string>() : value.dump()});
    } else if (key == "data_types.grad_accum_dtype" && is_one_of(text_of(value), kHalfSums)) {
      notes.push_back(origin(key, value) + ": gradients are summed in fp32 here");
    } else if (const Foreign* fixed = find_foreign(kFixedKeys, key)) {
      fixed->check(origin(key, value), text_of(value));
    } else if (is_ignored(key)) {
      ignored.push_back(key);
    } else if (key == "optimizer.params.betas" && optimizer() != "sgd") {
      read_betas(key, value, optimizer() == "lion" ? "lion-beta" : "adam-beta");
    } else if (key == "optimizer.params.momentum" &&
               (optimizer() == "sgd" || optimizer() == "muon")) {
      flags.set(optimizer() + "-momentum", origin(key, value), {text_of(value)});
    } else if (key == "checkpoint.tag_validation") {
      read_tag_validation(key, value);
    } else if (key == "fp16.initial_scale_power") {
      read_scale_power(key, value);
    } else if (key == "gradient_accumulation_steps") {
      read_accumulation(key, value);
    } else if (key == "scheduler") {
      throw UserError(path +
                      ": scheduler: DeepSpeed's schedules differ from Megatron's; use "
                      "--lr-decay-style, --lr-warmup-iters and --lr-decay-iters instead");
    } else {
      throw UserError(path + ": " + printable(key) + " is not a key that this trainer knows");
    }
  }

  const std::string& optimizer() const { return config.engine.zero.optimizer.name; }

  // Reads the type, and what DeepSpeed takes where the section says nothing.
  void read_optimizer(const Json& section) {
    if (const auto type = section.find("type"); type != section.end()) {
      const std::string name = type->is_string() ? lower(type->get<std::string>()) : "";
      const auto* known =
          std::ranges::find(kOptimizers, name, [](const auto& p) { return p.first; });
      expect(known != std::end(kOptimizers), "optimizer.type", *type,
             "AdamW, Adam, FusedAdam, SGD, Lion or Muon");
      flags.set("optimizer", origin("optimizer.type", *type), {std::string(known->second)});
    }
    const Json none = Json::object(), params = section.value("params", none);
    const auto assume = [&](const char* key, const std::string& flag, const Json& value) {
      if (!params.is_object() || params.contains(key) || flags.given(flag)) return;
      flags.set(flag, origin(std::string("optimizer.params.") + key + " (default)", value),
                {value.dump()});
    };
    if (optimizer() == "sgd") assume("momentum", "sgd-momentum", 0);
    if (optimizer() == "lion") assume("betas", "lion-beta2", 0.999);
    if (optimizer() != "muon" || !params.is_object()) return;
    if (!params.contains("ns_method"))
      notes.push_back("optimizer.params.ns_method of " + path +
                      ": DeepSpeed's default is gram; here Muon iterates by the standard method");
    const auto rate = [&](const char* key) {
      const Json value = params.value(key, params.value("lr", Json()));
      expect(value.is_number() || value.is_null(), std::string("optimizer.params.") + key, value,
             "a number");
      return value;
    };
    const Json muon = rate("muon_lr"), adam = rate("adam_lr");
    if (params.contains("adam_lr") && params.value("lr", adam) != adam)
      throw UserError(origin("optimizer.params.lr", params["lr"]) +
                      ": give muon_lr in its place, beside adam_lr");
    if (params.contains("adam_lr"))
      flags.set("lr", origin("optimizer.params.adam_lr", adam), {adam.dump()});
    if (muon.is_number() && adam.is_number() && muon != adam)
      flags.set("muon-lr-scale", origin("optimizer.params.muon_lr", muon),
                {Json(muon.get<double>() / adam.get<double>()).dump()});
  }

  void read_betas(const std::string& key, const Json& value, const std::string& flag) {
    expect(value.is_array() && value.size() == 2 && value[0].is_number() && value[1].is_number(),
           key, value, "two numbers, as [0.9, 0.999]");
    flags.set(flag + "1", origin(key + "[0]", value[0]), {value[0].dump()});
    flags.set(flag + "2", origin(key + "[1]", value[1]), {value[1].dump()});
  }

  void read_tag_validation(const std::string& key, const Json& value) {
    const std::string text = lower(value.is_string() ? value.get<std::string>() : "");
    const auto* name = std::ranges::find(kTagValidations, text, lower);  // DeepSpeed minds no case
    expect(name != std::end(kTagValidations), key, value, R"("Ignore", "Warn" or "Fail")");
    config.engine.tag_validation = static_cast<TagValidation>(name - kTagValidations);
  }

  void read_scale_power(const std::string& key, const Json& value) {
    expect(value.is_number_unsigned() && value.get<uint64_t>() <= 62, key, value,
           "an integer between 0 and 62");
    flags.set("initial-loss-scale", origin(key, value),
              {std::to_string(uint64_t{1} << value.get<uint64_t>())});
  }

  void read_accumulation(const std::string& key, const Json& value) {
    expect(value.is_number_unsigned() && value.get<uint64_t>() - 1 < INT32_MAX, key, value,
           "a positive integer");
    config.batch.gradient_accumulation_steps = value.get<int>();
  }

  void expect(bool holds, const std::string& key, const Json& value, const char* what) const {
    if (!holds) throw UserError(origin(key, value) + ": expected " + what);
  }

  // "zero_optimization.stage 1 of ds_config.json"
  std::string origin(const std::string& key, const Json& value) const {
    return printable(key) + " " + printable(text_of(value)) + " of " + path;
  }
};

}  // namespace

std::vector<std::string> read_deepspeed_json(const std::string& path, FlagTable& flags,
                                             Config& config, std::vector<std::string>* notes) {
  const Json root = parse_file(path);
  if (!root.is_object()) throw UserError(path + ": expected a JSON object");
  Reader reader{path, flags, config};
  reader.read_section(root, "");
  if (notes) notes->insert(notes->end(), reader.notes.begin(), reader.notes.end());
  return std::move(reader.ignored);
}

}  // namespace anymesh
