#include "tools/hf/gpt/args.h"

#include <utility>

#include "framework/checkpoint/args.h"
#include "framework/format/torch_file.h"
#include "framework/util/errors.h"

namespace anymesh {
namespace {

// Switches of Megatron's models that our flags lack.
constexpr const char* kOthers[] = {"squared_relu", "openai_gelu",
                                   "apply_residual_connection_post_layernorm"};

}  // namespace

// Declares the flags while the fields have their defaults, which decide the value a switch sets.
std::vector<Setting> settings_of(const GptConfig& gpt) {
  GptConfig fields;
  FlagTable flags("", "");
  add_flags(flags, fields);
  fields = gpt;
  return flags.settings();
}

Value args_of_gpt(const GptConfig& gpt) {
  std::vector<Value::Entry> entries;
  for (const Setting& setting : settings_of(resolved(gpt)))
    entries.emplace_back(setting.dest, value_of(setting.value));
  return argparse_namespace(std::move(entries));
}

GptConfig gpt_of_args(const Value& args) {
  GptConfig gpt;
  FlagTable flags("", "");
  add_flags(flags, gpt);
  read_args(flags, args);
  for (const char* other : kOthers)
    if (const Value value = args.find(other); value && value.as_bool()) value.fail("False");
  try {
    validate(gpt);
  } catch (const UserError& error) {
    throw DamagedFile(args.where() + ": as flags: " + error.what());
  }
  return gpt;
}

std::string flags_of_gpt(const GptConfig& gpt) {
  const std::vector<Setting> defaults = settings_of({}), settings = settings_of(gpt);
  std::string text;
  for (size_t i = 0; i < settings.size(); ++i) {
    if (settings[i].value == defaults[i].value) continue;
    text += (text.empty() ? "" : " ") + settings[i].words;
  }
  return text;
}

}  // namespace anymesh
