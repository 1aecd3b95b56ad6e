#include <limits>
#include <set>

#include "tools/hf/gpt/family.h"

namespace anymesh {
namespace {

// The object under the key `name` that says how rotation is scaled.
class Scaling {
 public:
  Scaling(const Keys& keys, std::string name, const Json& rope)
      : keys_(keys), name_(std::move(name)), rope_(rope) {}

  Json at(const char* key) const {
    used_.insert(key);
    return rope_.value(key, Json());
  }
  void read(GptConfig& gpt) const {
    const Json old = at("type"), type = at("rope_type").is_null() ? old : at("rope_type");
    if (!old.is_null() && old != type) fail("type", "that of rope_type, " + type.dump());
    if (type == "linear") {
      gpt.rotary_seq_len_interpolation_factor = number("factor");
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
  void report_unused() const {
    for (const auto& [key, value] : rope_.items())
      if (value.is_object() && !used_.contains(key))
        fail(key.c_str(), "one rotation, for all layers");
    keys_.report_unused(name_, rope_, used_);
  }

 private:
  [[noreturn]] void fail(const char* key, const std::string& expected) const {
    keys_.fail(name_ + "." + key, at(key), expected);
  }
  double number(const char* key) const {
    if (!at(key).is_number()) fail(key, "a number");
    return at(key).get<double>();
  }

  // Returns the context of pretraining: the key beside the object, else that in it, else the whole.
  int context(const GptConfig& gpt, int least, int most, const std::string& expected) const {
    const char* const key = "original_max_position_embeddings";
    const Json inner = at(key), outer = keys_.find(key), given = outer.is_null() ? inner : outer,
               value = given.is_null() ? Json(gpt.max_position_embeddings) : given;
    if (!value.is_number() || value < least || value > most ||
        value.get<int>() != value.get<double>())
      keys_.fail(outer.is_null() ? name_ + "." + key : key, given, expected);
    return value.get<int>();
  }

  void read_llama3(GptConfig& gpt) const {
    const std::string reason = ", since --use-rope-scaling has no other";
    for (const auto& [key, only] : {std::pair("low_freq_factor", kLlama3LowFrequency),
                                    {"high_freq_factor", kLlama3HighFrequency}})
      if (at(key) != only) fail(key, std::to_string(only) + reason);
    context(gpt, kLlama3Context, kLlama3Context, std::to_string(kLlama3Context) + reason);
    gpt.use_rope_scaling = true;
    gpt.rope_scaling_factor = number("factor");
  }

  void read_yarn(GptConfig& gpt) const {
    gpt.rope_type = "yarn";
    gpt.rotary_scaling_factor = number("factor");
    gpt.original_max_position_embeddings = context(gpt, 1, INT_MAX, "an integer");
    if (!at("beta_fast").is_null()) gpt.beta_fast = number("beta_fast");
    if (!at("beta_slow").is_null()) gpt.beta_slow = number("beta_slow");
    for (const char* key : {"attention_factor", "mscale", "mscale_all_dim"})
      if (!at(key).is_null()) fail(key, "null: cos and sin are scaled by 0.1 ln(factor) + 1 here");
    if (!at("truncate").is_null() && at("truncate") != true) fail("truncate", "true");
  }

  const Keys& keys_;
  std::string name_;
  const Json& rope_;
  mutable std::set<std::string> used_;
};

// transformers 5 has rope_parameters. Older versions have the keys rope_theta and rope_scaling.
// transformers takes rope_scaling where it finds both objects, and what the object has before what
// stands beside it.
void read_rotary(const Keys& keys, GptConfig& gpt, const char* percent_name,
                 const char* theta_name) {
  const char* const factor = "partial_rotary_factor";
  Json theta = keys.at(theta_name), part = keys.find(percent_name ? percent_name : factor);
  for (const char* name : {"rope_scaling", "rope_parameters"}) {
    const Json rope = keys.find(name);
    if (rope.is_null()) continue;
    if (!rope.is_object()) keys.fail(name, rope, "an object");
    if (rope.empty()) continue;
    const Scaling scaling(keys, name, rope);
    scaling.read(gpt);
    if (const Json inner = scaling.at("rope_theta"); rope.contains("rope_theta")) theta = inner;
    if (!scaling.at(factor).is_null()) part = scaling.at(factor);
    scaling.report_unused();
    break;
  }
  if (part.is_null()) part = 1;
  if (!part.is_number() || (!percent_name && part != 1))
    keys.fail(percent_name ? percent_name : factor, part, percent_name ? "a number" : "1");
  if (!theta.is_number() || theta < 1 || theta > std::numeric_limits<float>::max())
    keys.fail(theta_name, theta, "a number from 1 to 3.4e38, the greatest of fp32");
  gpt.use_rotary_position_embeddings = true;
  gpt.rotary_percent = part.get<double>();
  gpt.rope_theta = theta.get<double>();
}

void write_rotary(const GptConfig& gpt, Keys& keys, const char* theta_name) {
  keys.put(theta_name, gpt.rope_theta.value);
  Json scaling;
  if (gpt.use_rope_scaling)
    scaling = {{"rope_type", "llama3"},
               {"factor", gpt.rope_scaling_factor},
               {"low_freq_factor", static_cast<double>(kLlama3LowFrequency)},
               {"high_freq_factor", static_cast<double>(kLlama3HighFrequency)},
               {"original_max_position_embeddings", kLlama3Context}};
  if (gpt.rotary_seq_len_interpolation_factor != 1)
    scaling = {{"rope_type", "linear"}, {"factor", gpt.rotary_seq_len_interpolation_factor.value}};
  if (gpt.rope_type == "yarn")
    scaling = {{"rope_type", "yarn"},
               {"factor", gpt.rotary_scaling_factor},
               {"original_max_position_embeddings", gpt.original_max_position_embeddings},
               {"beta_fast", gpt.beta_fast},
               {"beta_slow", gpt.beta_slow}};
  if (gpt.rope_type == "dynamic") {
    scaling = {{"rope_type", "dynamic"}, {"factor", gpt.rotary_scaling_factor}};
    keys.put("max_position_embeddings",
             gpt.original_max_position_embeddings);  // there is no other key
  }
  if (!scaling.is_null()) keys.put("rope_scaling", scaling);
}

}  // namespace

void bind_rotary(Keys& keys, GptConfig& gpt, const char* percent, const char* theta) {
  if (keys.writes())
    write_rotary(gpt, keys, theta);
  else
    read_rotary(keys, gpt, percent, theta);
}

}  // namespace anymesh
