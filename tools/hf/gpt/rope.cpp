#include "tools/hf/gpt/family.h"

namespace anymesh {
namespace {

int whole(const Keys& keys, const std::string& key, const Json& value, const std::string& flag) {
  const bool fits = value.is_number() && value >= 1 && value <= INT_MAX &&
                    static_cast<double>(value.get<int>()) == value.get<double>();
  if (!fits) keys.fail(key, value, "an integer (" + flag + " takes no other)");
  return value.get<int>();
}

// The object under the key `name` that says how rotation is scaled.
class Scaling {
 public:
  Scaling(const Keys& keys, std::string name, const Json& rope)
      : keys_(keys), name_(std::move(name)), rope_(rope) {}

  Json at(const char* key) const { return rope_.value(key, Json()); }
  void read(GptConfig& gpt) const {
    const Json old = at("type"), type = at("rope_type").is_null() ? old : at("rope_type");
    if (!old.is_null() && old != type) fail("type", "that of rope_type, " + type.dump());
    if (type == "linear") {
      gpt.rotary_seq_len_interpolation_factor =
          whole(keys_, name_ + ".factor", at("factor"), "--rotary-seq-len-interpolation-factor");
    } else if (type == "llama3") {
      read_llama3(gpt);
    } else if (type == "yarn") {
      read_yarn(gpt);
    } else if (type == "dynamic") {
      gpt.rope_type = "dynamic";
      gpt.rotary_scaling_factor = number("factor");
      gpt.original_max_position_embeddings = gpt.max_position_embeddings;
    } else if (!type.is_null() && type != "default") {
      fail(at("rope_type").is_null() ? "type" : "rope_type",
           "\"default\", \"linear\", \"llama3\", \"yarn\" or \"dynamic\", since pretrain_gpt "
           "scales in no other way");
    }
  }

 private:
  [[noreturn]] void fail(const char* key, const std::string& expected) const {
    keys_.fail(name_ + "." + key, at(key), expected);
  }
  double number(const char* key) const {
    if (!at(key).is_number()) fail(key, "a number");
    return at(key).get<double>();
  }

  void read_llama3(GptConfig& gpt) const {
    for (const auto& [key, only] : {std::pair("low_freq_factor", kLlama3LowFrequency),
                                    {"high_freq_factor", kLlama3HighFrequency},
                                    {"original_max_position_embeddings", kLlama3Context}})
      if (at(key) != only)
        fail(key, std::to_string(only) + ", since --use-rope-scaling has no other");
    keys_.one_of("original_max_position_embeddings", {kLlama3Context});  // would take precedence
    gpt.use_rope_scaling = true;
    gpt.rope_scaling_factor = number("factor");
  }

  void read_yarn(GptConfig& gpt) const {
    gpt.rope_type = "yarn";
    gpt.rotary_scaling_factor = number("factor");
    gpt.original_max_position_embeddings =
        whole(keys_, name_ + ".original_max_position_embeddings",
              at("original_max_position_embeddings"), "--original-max-position-embeddings");
    if (!at("beta_fast").is_null()) gpt.beta_fast = number("beta_fast");
    if (!at("beta_slow").is_null()) gpt.beta_slow = number("beta_slow");
    for (const char* key : {"attention_factor", "mscale", "mscale_all_dim"})
      if (!at(key).is_null()) fail(key, "null: cos and sin are scaled by 0.1 ln(factor) + 1 here");
    if (!at("truncate").is_null() && at("truncate") != true) fail("truncate", "true");
  }

  const Keys& keys_;
  std::string name_;
  const Json& rope_;
};

}  // namespace

// transformers 5 has rope_parameters. Older versions have the keys rope_theta and rope_scaling,
// which transformers prefers where it finds both.
void read_rotary(const Keys& keys, GptConfig& gpt, const char* percent_name, double percent,
                 const char* theta_name) {
  const char* const factor = "partial_rotary_factor";
  Json theta = keys.at({theta_name, "rope_theta"}, gpt.rope_theta),
       part = keys.find({percent_name ? percent_name : factor, factor});
  for (const char* name : {"rope_scaling", "rope_parameters"}) {
    const Json rope = keys.find({name});
    if (rope.is_null()) continue;
    if (!rope.is_object()) keys.fail(name, rope, "an object");
    if (rope.empty()) continue;
    const Scaling scaling(keys, name, rope);
    scaling.read(gpt);
    if (rope.contains("rope_theta")) theta = rope["rope_theta"];
    if (!scaling.at(factor).is_null()) part = scaling.at(factor);
    break;
  }
  if (part.is_null()) part = percent;
  if (!part.is_number() || (!percent_name && part != 1))
    keys.fail(percent_name ? percent_name : factor, part, percent_name ? "a number" : "1");
  gpt.use_rotary_position_embeddings = true;
  gpt.rotary_percent = part.get<double>();
  gpt.rope_theta = whole(keys, theta_name, theta, "--rotary-position-embeddings-theta");
}

void write_rotary(const GptConfig& gpt, Json& json, const char* theta_name) {
  json[theta_name] = static_cast<double>(gpt.rope_theta);
  Json scaling;
  if (gpt.use_rope_scaling)
    scaling = {{"rope_type", "llama3"},
               {"factor", gpt.rope_scaling_factor},
               {"low_freq_factor", static_cast<double>(kLlama3LowFrequency)},
               {"high_freq_factor", static_cast<double>(kLlama3HighFrequency)},
               {"original_max_position_embeddings", kLlama3Context}};
  if (gpt.rotary_seq_len_interpolation_factor != 1)
    scaling = {{"rope_type", "linear"},
               {"factor", static_cast<double>(gpt.rotary_seq_len_interpolation_factor)}};
  if (gpt.rope_type == "yarn")
    scaling = {{"rope_type", "yarn"},
               {"factor", gpt.rotary_scaling_factor},
               {"original_max_position_embeddings", gpt.original_max_position_embeddings},
               {"beta_fast", gpt.beta_fast},
               {"beta_slow", gpt.beta_slow}};
  if (gpt.rope_type == "dynamic") {
    scaling = {{"rope_type", "dynamic"}, {"factor", gpt.rotary_scaling_factor}};
    json["max_position_embeddings"] =
        gpt.original_max_position_embeddings;  // there is no other key
  }
  if (!scaling.is_null()) json["rope_scaling"] = scaling;
}

}  // namespace anymesh
