#include "tools/hf/gpt/config.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "framework/format/io.h"
#include "framework/util/errors.h"
#include "framework/util/format.h"
#include "framework/util/printable.h"
#include "tools/hf/export.h"
#include "tools/hf/gpt/args.h"
#include "tools/hf/gpt/family.h"

namespace anymesh {
namespace {

// Keys of transformers that do not change the results of these families: names, versions, dtypes,
// classifiers, sampling of text, kernels.
constexpr std::string_view kWithoutEffect =
    " architectures transformers_version torch_dtype dtype use_cache exported_by"
    " task_specific_params id2label label2id num_labels problem_type finetuning_task"
    " return_dict tokenizer_class auto_map license prefix is_decoder max_length min_length"
    " do_sample num_beams temperature top_k top_p typical_p repetition_penalty length_penalty"
    " max_new_tokens num_return_sequences num_beam_groups diversity_penalty early_stopping"
    " chunk_size_feed_forward gradient_checkpointing n_ctx reorder_and_upcast_attn"
    " pretraining_tp slow_but_exact offset_alibi masked_softmax_fusion"
    " attention_softmax_in_fp32 bias_dropout_fusion skip_bias_add skip_bias_add_qkv"
    " unk_token_id sep_token_id decoder_start_token_id attn_implementation torchscript ";

bool has_no_effect(const std::string& key) {
  return key.starts_with('_') || key.starts_with("summary_") ||
         kWithoutEffect.find(" " + key + " ") != std::string_view::npos;
}

// Returns the ids as they stand. A key that is present and null has no ids.
TokenIds read_token_ids(const Keys& keys) {
  TokenIds ids;
  for (const char* name : kTokenIds) {
    if (!keys.contains(name)) continue;
    const Json value = keys.find(name);
    const Json list = value.is_array()  ? value
                      : value.is_null() ? Json::array()
                                        : Json::array({value});
    for (const Json& id : list)
      if (!id.is_number_integer()) keys.fail(name, value, "an integer, a list of them or null");
    ids[name] = list.get<std::vector<int64_t>>();
  }
  return ids;
}

// Binds what decides the model, by the family's keys.
void bind_model(Keys& keys, const Family& family, GptConfig& gpt) {
  keys.bind(family.keys.hidden_size, gpt.hidden_size);
  keys.bind(family.keys.num_layers, gpt.num_layers);
  keys.bind(family.keys.num_heads, gpt.num_attention_heads);
  family.bind(keys, gpt);
  keys.bind("vocab_size", gpt.vocab_size);
  keys.bind_not("tie_word_embeddings", gpt.untie_embeddings_and_output_weights);
  keys.bind(family.keys.initializer, gpt.init_method_std);
}

GptConfig read_model(Keys& keys, const Family& family) {
  GptConfig gpt;
  keys.assume(family.other_names, defaults_of(family));
  bind_model(keys, family, gpt);
  gpt.seq_length = gpt.max_position_embeddings;
  return gpt;
}

Json written_model(const GptConfig& config, const Family& family) {
  Keys keys;
  keys.put("architectures", Json::array({family.architecture}));
  keys.put("model_type", family.model_type);
  GptConfig gpt = resolved(config);
  bind_model(keys, family, gpt);
  return keys.object();
}

// Returns the model with one of all flags that say the same.
GptConfig comparable(const GptConfig& config) {
  GptConfig gpt = resolved(config);
  if (gpt.num_experts <= 1) return gpt;
  gpt.moe_layer_freq = shortest_layer_freq(gpt);
  if (gpt.moe_layer_freq == std::vector{1}) gpt.ffn_hidden_size = gpt.moe_ffn_hidden_size;
  return gpt;
}

// Returns the flags that the model would need to belong to the family; "" if it does. A member
// comes back with its flags from the family's config.json.
std::string misfits(const Family& family, const GptConfig& gpt) {
  if (family.experts != (gpt.num_experts > 1))
    return family.experts ? "--num-experts of at least 2" : "no --num-experts";
  GptConfig member;
  try {
    Keys keys("config.json", written_model(gpt, family));
    member = read_model(keys, family);
  } catch (const DamagedFile& error) {
    return error.what();
  }
  member.bias_gelu_fusion &= !member.gated() && !member.relu;
  const std::vector<Setting> has = settings_of(comparable(gpt)),
                             needs = settings_of(comparable(member));
  const std::vector<std::string> decisive = model_facts(gpt, /*tp=*/1).flags;
  std::vector<std::string> unmet;
  for (size_t i = 0; i < has.size(); ++i) {
    if (has[i].value == needs[i].value ||
        std::ranges::find(decisive, has[i].flag) == decisive.end())
      continue;
    unmet.push_back(needs[i].words.empty() ? "no --" + needs[i].flag : needs[i].words);
  }
  return joined(unmet);
}

// Throws for a type that is not known here, with the reason where there is one.
const Family& family_of_type(const Keys& keys) {
  const Json type = keys.find("model_type");
  std::string name = type.is_string() ? type.get<std::string>() : "";
  if (name == "ministral") name = "mistral";  // transformers' name for one with layer_types
  if (const Family* family = find_family(name)) return *family;
  std::vector<std::string> known;
  for (const Family* family : families()) known.emplace_back(family->model_type);
  const std::string reason = why_refused(name);
  keys.fail(
      "model_type", type,
      (reason.empty() ? "one of " : "another, since " + reason + ". Known are ") + joined(known));
}

}  // namespace

HfModel read_hf_config(const std::filesystem::path& file) { return read_hf_config(Keys(file)); }

HfModel read_hf_config(Keys keys) {
  const Family& family = family_of_type(keys);
  if (const Json quantized = keys.find("quantization_config"); !quantized.is_null())
    keys.fail("quantization_config", quantized, "none: weights in fp32, bf16 or fp16");
  HfModel model{
      .family = &family, .gpt = read_model(keys, family), .token_ids = read_token_ids(keys)};
  model.notes = keys.notes();
  std::vector<std::string> unknown = keys.unused();
  std::erase_if(unknown, has_no_effect);
  if (!unknown.empty())
    model.notes.push_back(
        std::string(kHfConfigFile) +
        " has keys that are not known here and had no effect: " + printable(joined(unknown), 1000));
  try {
    validate(model.gpt);
  } catch (const UserError& error) {
    throw DamagedFile(keys.file() + ": as flags: " + error.what());
  }
  return model;
}

const Family& family_of(const GptConfig& gpt, const std::string& preferred) {
  if (const Family* family = find_family(preferred); family && misfits(*family, gpt).empty())
    return *family;
  std::string reasons;
  for (const Family* family : families()) {
    const std::string reason = misfits(*family, gpt);
    if (reason.empty()) return *family;
    reasons += std::string("\n  ") + family->name + ": " + reason;
  }
  throw DamagedFile(
      "no family of transformers that is known here has this model; it would take for" + reasons);
}

std::string hf_config_text(const HfModel& model) {
  Json json = written_model(model.gpt, *model.family);
  for (const auto& [name, ids] : model.token_ids)
    json[name] = ids.empty() ? Json() : ids.size() == 1 ? Json(ids[0]) : Json(ids);
  json["dtype"] = "float32";
  json["exported_by"] = "anymesh";
  return json.dump(2) + "\n";
}

}  // namespace anymesh
