#include "tools/hf/gpt/config.h"

#include <utility>

#include "framework/format/io.h"
#include "framework/util/errors.h"
#include "framework/util/format.h"
#include "framework/util/printable.h"
#include "tools/hf/export.h"
#include "tools/hf/gpt/keys.h"

namespace anymesh {
namespace {

int whole(const Keys& keys, const std::string& key, const Json& value, const std::string& flag) {
  const bool fits = value.is_number() && value >= 1 && value <= INT_MAX &&
                    static_cast<double>(value.get<int>()) == value.get<double>();
  if (!fits) keys.fail(key, value, "an integer (" + flag + " takes no other)");
  return value.get<int>();
}

// `rope` is the object under the key `name`.
void read_scaling(const Keys& keys, const std::string& name, const Json& rope, GptConfig& gpt) {
  const auto at = [&](const char* key) { return rope.value(key, Json()); };
  const auto fail = [&](const std::string& key, const Json& found, const std::string& expected) {
    keys.fail(name + "." + key, found, expected);
  };
  if (const Json part = at("partial_rotary_factor"); !part.is_null() && part != 1)
    fail("partial_rotary_factor", part, "1");
  const Json old = at("type"), type = at("rope_type").is_null() ? old : at("rope_type");
  if (!old.is_null() && old != type) fail("type", old, "that of rope_type, " + type.dump());
  if (type == "linear") {
    gpt.rotary_seq_len_interpolation_factor =
        whole(keys, name + ".factor", at("factor"), "--rotary-seq-len-interpolation-factor");
  } else if (type == "llama3") {
    for (const auto& [key, only] : {std::pair("low_freq_factor", kLlama3LowFrequency),
                                    {"high_freq_factor", kLlama3HighFrequency},
                                    {"original_max_position_embeddings", kLlama3Context}})
      if (at(key) != only)
        fail(key, at(key), std::to_string(only) + ", since --use-rope-scaling has no other");
    keys.one_of("original_max_position_embeddings", {kLlama3Context});  // would take precedence
    if (!at("factor").is_number()) fail("factor", at("factor"), "a number");
    gpt.use_rope_scaling = true;
    gpt.rope_scaling_factor = at("factor").get<double>();
  } else if (!type.is_null() && type != "default") {
    fail(at("rope_type").is_null() ? "type" : "rope_type", type,
         "\"default\", \"linear\" or \"llama3\", since pretrain_gpt scales in no other way");
  }
}

// transformers 5 has rope_parameters. Older versions have the keys rope_theta and rope_scaling,
// which transformers prefers where it finds both.
void read_rotary(const Keys& keys, GptConfig& gpt) {
  Json theta = keys.at({"rope_theta"}, 10000);
  keys.one_of("partial_rotary_factor", {1});
  for (const char* name : {"rope_scaling", "rope_parameters"}) {
    const Json rope = keys.find({name});
    if (rope.is_null()) continue;
    if (!rope.is_object()) keys.fail(name, rope, "an object");
    if (rope.empty()) continue;
    read_scaling(keys, name, rope, gpt);
    if (rope.contains("rope_theta")) theta = rope["rope_theta"];
    break;
  }
  gpt.use_rotary_position_embeddings = true;
  gpt.rope_theta = whole(keys, "rope_theta", theta, "--rotary-position-embeddings-theta");
}

Json rope_scaling(const GptConfig& gpt) {
  if (gpt.use_rope_scaling)
    return {{"rope_type", "llama3"},
            {"factor", gpt.rope_scaling_factor},
            {"low_freq_factor", static_cast<double>(kLlama3LowFrequency)},
            {"high_freq_factor", static_cast<double>(kLlama3HighFrequency)},
            {"original_max_position_embeddings", kLlama3Context}};
  if (gpt.rotary_seq_len_interpolation_factor == 1) return {};
  return {{"rope_type", "linear"},
          {"factor", static_cast<double>(gpt.rotary_seq_len_interpolation_factor)}};
}

void read_gpt2(const Keys& keys, GptConfig& gpt) {
  gpt.max_position_embeddings = keys.integer({"n_positions", "max_position_embeddings"});
  if (!keys.find({"n_inner"}).is_null()) gpt.ffn_hidden_size = keys.integer({"n_inner"});
  const Json gelu = keys.one_of("activation_function", {"gelu_new", "gelu_pytorch_tanh", "gelu"});
  gpt.bias_gelu_fusion = gelu != "gelu";
  gpt.layernorm_epsilon = keys.number("layer_norm_epsilon", 1e-5);
  gpt.attention_dropout = keys.number("attn_pdrop", 0.1);
  gpt.hidden_dropout = keys.number("resid_pdrop", 0.1);
  if (const double embedding = keys.number("embd_pdrop", 0.1); embedding != gpt.hidden_dropout)
    keys.fail("embd_pdrop", embedding,
              "that of resid_pdrop, " + std::to_string(gpt.hidden_dropout) +
                  ": --hidden-dropout is for both (no weight depends on it, so it may be edited)");
  keys.one_of("scale_attn_weights", {true});
  keys.one_of("scale_attn_by_inverse_layer_idx", {false});
  keys.one_of("add_cross_attention", {false});
}

void write_gpt2(const GptConfig& gpt, Json& json) {
  json["n_positions"] = gpt.max_position_embeddings;
  json["n_inner"] = gpt.ffn_hidden_size;
  json["activation_function"] = gpt.tanh_gelu() ? "gelu_new" : "gelu";
  json["layer_norm_epsilon"] = gpt.layernorm_epsilon;
  json["attn_pdrop"] = gpt.attention_dropout;
  json["resid_pdrop"] = gpt.hidden_dropout;
  json["embd_pdrop"] = gpt.hidden_dropout;
}

void read_llama(const Keys& keys, GptConfig& gpt) {
  gpt.num_key_value_heads = keys.integer({"num_key_value_heads"}, gpt.num_attention_heads);
  gpt.ffn_hidden_size = keys.integer({"intermediate_size"});
  gpt.max_position_embeddings = keys.integer({"max_position_embeddings"});
  gpt.layernorm_epsilon = keys.number("rms_norm_eps", 1e-6);
  gpt.attention_dropout = keys.number("attention_dropout", 0);
  gpt.hidden_dropout = 0;
  gpt.normalization = "rmsnorm";
  gpt.swiglu = true;
  gpt.add_bias_linear = keys.is_true("attention_bias", false);
  keys.one_of("mlp_bias", {gpt.add_bias_linear});
  keys.one_of("hidden_act", {"silu"});
  if (const Json head = keys.find({"head_dim"}); !head.is_null())
    keys.one_of("head_dim", {gpt.hidden_size / gpt.num_attention_heads});
  read_rotary(keys, gpt);
}

void write_llama(const GptConfig& gpt, Json& json) {
  json["num_key_value_heads"] = gpt.num_key_value_heads;
  json["head_dim"] = gpt.head_dim();
  json["intermediate_size"] = gpt.ffn_hidden_size;
  json["max_position_embeddings"] = gpt.max_position_embeddings;
  json["hidden_act"] = "silu";
  json["rms_norm_eps"] = gpt.layernorm_epsilon;
  json["rope_theta"] = static_cast<double>(gpt.rope_theta);
  json["attention_bias"] = gpt.add_bias_linear;
  json["mlp_bias"] = gpt.add_bias_linear;
  json["attention_dropout"] = gpt.attention_dropout;
  if (const Json scaling = rope_scaling(gpt); !scaling.is_null()) json["rope_scaling"] = scaling;
}

// Reads a Mistral: a Llama with a window of tokens that attention reaches back to. Absent keys have
// MistralConfig's defaults.
void read_mistral(const Keys& keys, GptConfig& gpt) {
  read_llama(keys, gpt);
  if (!keys.contains("num_key_value_heads")) gpt.num_key_value_heads = 8;
  const bool windowed =
      !keys.contains("sliding_window") || !keys.find({"sliding_window"}).is_null();
  const int window = windowed ? keys.integer({"sliding_window"}, 4096) : INT_MAX;
  if (window < gpt.max_position_embeddings)
    keys.fail(
        "sliding_window", window,
        "null, or at least max_position_embeddings (" +
            std::to_string(gpt.max_position_embeddings) +
            "), since pretrain_gpt's attention reaches back to the first token. Texts of up to " +
            std::to_string(window) +
            " tokens are the same either way: for those, set max_position_embeddings to that");
}

void read_bloom(const Keys& keys, GptConfig& gpt) {
  gpt.max_position_embeddings =
      keys.integer({"seq_length"}, 2048);  // ALiBi has no table; the length it was trained with
  gpt.layernorm_epsilon = keys.number("layer_norm_epsilon", 1e-5);
  gpt.attention_dropout = keys.number("attention_dropout", 0);
  gpt.hidden_dropout = keys.number("hidden_dropout", 0);
  gpt.position_embedding_type = "alibi";
  gpt.embed_layernorm = true;
  keys.one_of("apply_residual_connection_post_layernorm", {false});
}

void write_bloom(const GptConfig& gpt, Json& json) {
  json["seq_length"] = gpt.max_position_embeddings;
  json["layer_norm_epsilon"] = gpt.layernorm_epsilon;
  json["attention_dropout"] = gpt.attention_dropout;
  json["hidden_dropout"] = gpt.hidden_dropout;
}

// A family's names for the keys that all families have, and its functions for the others.
struct Family {
  const char *name, *model_type, *architecture;
  const char *hidden_size, *old_hidden_size;  // the old key goes first
  const char *num_layers, *num_heads;
  void (*read)(const Keys& keys, GptConfig& gpt);
  void (*write)(const GptConfig& gpt, Json& json);
};
constexpr Family kFamilies[] = {
    {"GPT-2", "gpt2", "GPT2LMHeadModel", "n_embd", "n_embd", "n_layer", "n_head", read_gpt2,
     write_gpt2},
    {"Llama", "llama", "LlamaForCausalLM", "hidden_size", "hidden_size", "num_hidden_layers",
     "num_attention_heads", read_llama, write_llama},
    {"BLOOM", "bloom", "BloomForCausalLM", "hidden_size", "n_embed", "n_layer", "n_head",
     read_bloom, write_bloom},
    // A Mistral without its window is a Llama, and is treated as one from here on.
    {"Llama", "mistral", "LlamaForCausalLM", "hidden_size", "hidden_size", "num_hidden_layers",
     "num_attention_heads", read_mistral, write_llama}};

// Keys of transformers that do not change the results of these families: names, versions, dtypes,
// classifiers, sampling of text, kernels.
constexpr const char* kWithoutEffect[] = {"architectures",
                                          "transformers_version",
                                          "torch_dtype",
                                          "dtype",
                                          "use_cache",
                                          "exported_by",
                                          "task_specific_params",
                                          "id2label",
                                          "label2id",
                                          "num_labels",
                                          "problem_type",
                                          "finetuning_task",
                                          "return_dict",
                                          "tokenizer_class",
                                          "auto_map",
                                          "license",
                                          "prefix",
                                          "is_decoder",
                                          "max_length",
                                          "min_length",
                                          "do_sample",
                                          "num_beams",
                                          "temperature",
                                          "top_k",
                                          "top_p",
                                          "typical_p",
                                          "repetition_penalty",
                                          "length_penalty",
                                          "max_new_tokens",
                                          "num_return_sequences",
                                          "num_beam_groups",
                                          "diversity_penalty",
                                          "early_stopping",
                                          "chunk_size_feed_forward",
                                          "gradient_checkpointing",
                                          "n_ctx",
                                          "reorder_and_upcast_attn",
                                          "pretraining_tp",
                                          "slow_but_exact",
                                          "offset_alibi",
                                          "masked_softmax_fusion",
                                          "attention_softmax_in_fp32",
                                          "bias_dropout_fusion",
                                          "skip_bias_add",
                                          "skip_bias_add_qkv",
                                          "unk_token_id",
                                          "sep_token_id",
                                          "decoder_start_token_id",
                                          "attn_implementation",
                                          "torchscript"};

bool has_no_effect(const std::string& key) {
  return key.starts_with('_') || key.starts_with("summary_") ||
         std::ranges::find(kWithoutEffect, key) != std::end(kWithoutEffect);
}

// Returns the ids as they stand. A key that is present and null has no ids.
TokenIds read_token_ids(const Keys& keys) {
  TokenIds ids;
  for (const char* name : kTokenIds) {
    if (!keys.contains(name)) continue;
    const Json value = keys.find({name});
    const Json list = value.is_array()  ? value
                      : value.is_null() ? Json::array()
                                        : Json::array({value});
    for (const Json& id : list)
      if (!id.is_number_integer()) keys.fail(name, value, "an integer, a list of them or null");
    ids[name] = list.get<std::vector<int64_t>>();
  }
  return ids;
}

// Returns the flags that the model would need to belong to the family; "" if it does.
std::string misfits(HfFamily family, const GptConfig& c) {
  const bool llama = family == HfFamily::kLlama, bloom = family == HfFamily::kBloom;
  const bool all_heads = c.key_value_heads() == c.num_attention_heads;
  const std::pair<bool, std::string> wishes[] = {
      {c.normalization == (llama ? "rmsnorm" : "layernorm"),
       std::string("--normalization ") + (llama ? "rmsnorm" : "layernorm")},
      {c.swiglu == llama, llama ? "--swiglu" : "no --swiglu"},
      {c.embed_layernorm == bloom, bloom ? "--embed-layernorm" : "no --embed-layernorm"},
      {llama || c.add_bias_linear, "no --disable-bias-linear"},
      {llama || all_heads, "no --num-key-value-heads"},
      {!llama || c.use_rotary_position_embeddings, "--use-rotary-position-embeddings"},
      {!llama || c.rotary_percent == 1, "--rotary-percent 1"},
      {!bloom || c.alibi(), "--position-embedding-type alibi"},
      {!bloom || c.ffn_size() == 4 * c.hidden_size, "--ffn-hidden-size 4 x --hidden-size"},
      {!bloom || c.tanh_gelu(), "no --no-bias-gelu-fusion"},
      {llama || bloom || c.learned_positions(), "learned positions"}};
  std::vector<std::string> unmet;
  for (const auto& [met, wish] : wishes)
    if (!met) unmet.push_back(wish);
  return joined(unmet);
}

}  // namespace

const char* family_name(HfFamily family) { return kFamilies[static_cast<int>(family)].name; }

HfModel read_hf_config(const std::filesystem::path& file) {
  const Keys keys(file);
  if (keys.find({"model_type"}).is_null())
    keys.fail("model_type", {}, "gpt2, llama, bloom or mistral");
  std::vector<Json> types;
  for (const Family& family : kFamilies) types.emplace_back(family.model_type);
  const Json type = keys.one_of("model_type", types);
  if (const Json quantized = keys.find({"quantization_config"}); !quantized.is_null())
    keys.fail("quantization_config", quantized, "none: weights in fp32, bf16 or fp16");
  HfModel model;
  GptConfig& gpt = model.gpt;
  const Family* family = kFamilies;
  while (type != family->model_type) ++family;
  model.family = type == "mistral" ? HfFamily::kLlama : static_cast<HfFamily>(family - kFamilies);
  gpt.hidden_size = keys.integer({family->old_hidden_size, "hidden_size"});
  gpt.num_layers = keys.integer({family->num_layers, "num_hidden_layers"});
  gpt.num_attention_heads = keys.integer({family->num_heads, "num_attention_heads"});
  family->read(keys, gpt);
  gpt.vocab_size = keys.integer({"vocab_size"});
  gpt.seq_length = gpt.max_position_embeddings;
  gpt.init_method_std = keys.number("initializer_range", 0.02);
  gpt.untie_embeddings_and_output_weights =
      !keys.is_true("tie_word_embeddings", model.family != HfFamily::kLlama);
  model.token_ids = read_token_ids(keys);
  for (const std::string& key : keys.unused())
    if (!has_no_effect(key)) model.unknown_keys.push_back(key);
  try {
    validate(gpt);
  } catch (const UserError& error) {
    throw DamagedFile(file.string() + ": as flags: " + error.what());
  }
  return model;
}

std::string unknown_keys_note(const HfModel& model) {
  return std::string(kHfConfigFile) + " has keys that are not known here and had no effect: " +
         printable(joined(model.unknown_keys), 1000);
}

HfFamily family_of(const GptConfig& gpt) {
  std::string reasons;
  for (const HfFamily family : {HfFamily::kGpt2, HfFamily::kLlama, HfFamily::kBloom}) {
    const std::string reason = misfits(family, gpt);
    if (reason.empty()) return family;
    reasons += std::string("\n  ") + family_name(family) + ": " + reason;
  }
  throw DamagedFile(
      "no family of transformers that is known here has this model; it would take for" + reasons);
}

std::string hf_config_text(const HfModel& model) {
  const GptConfig gpt = resolved(model.gpt);
  const Family& family = kFamilies[static_cast<int>(model.family)];
  Json json;
  json["architectures"] = Json::array({family.architecture});
  json["model_type"] = family.model_type;
  json[family.hidden_size] = gpt.hidden_size;
  json[family.num_layers] = gpt.num_layers;
  json[family.num_heads] = gpt.num_attention_heads;
  family.write(gpt, json);
  json["vocab_size"] = gpt.vocab_size;
  json["tie_word_embeddings"] = !gpt.untie_embeddings_and_output_weights;
  json["initializer_range"] = gpt.init_method_std;
  for (const auto& [name, ids] : model.token_ids)
    json[name] = ids.empty() ? Json() : ids.size() == 1 ? Json(ids[0]) : Json(ids);
  json["dtype"] = "float32";
  json["exported_by"] = "anymesh";
  return json.dump(2) + "\n";
}

}  // namespace anymesh
