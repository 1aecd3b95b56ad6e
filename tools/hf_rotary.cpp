#include "tools/hf_rotary.h"

#include <utility>

namespace anymesh {
namespace {

using Json = HfKeys::Json;

int whole(const HfKeys& keys, const std::string& key, const Json& value, const std::string& flag) {
  const bool fits = value.is_number() && value >= 1 && value <= INT_MAX &&
                    static_cast<double>(value.get<int>()) == value.get<double>();
  if (!fits) keys.fail(key, value, "an integer (" + flag + " takes no other)");
  return value.get<int>();
}

// `rope` is the object of that name.
void read_scaling(const HfKeys& keys, const std::string& name, const Json& rope, GptConfig& gpt) {
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
    keys.one_of("original_max_position_embeddings", {kLlama3Context});  // would come first
    if (!at("factor").is_number()) fail("factor", at("factor"), "a number");
    gpt.use_rope_scaling = true;
    gpt.rope_scaling_factor = at("factor").get<double>();
  } else if (!type.is_null() && type != "default") {
    fail(at("rope_type").is_null() ? "type" : "rope_type", type,
         "\"default\", \"linear\" or \"llama3\", since pretrain_gpt scales in no other way");
  }
}

}  // namespace

// transformers 5 has rope_parameters; before, rope_theta and rope_scaling were keys of their own,
// which it prefers where there are both.
void read_rotary(const HfKeys& keys, GptConfig& gpt) {
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

Json hf_rope_scaling(const GptConfig& gpt) {
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

}  // namespace anymesh
