#pragma once

#include <functional>
#include <string>
#include <vector>

#include "framework/config/flags.h"
#include "framework/format/layout.h"
#include "framework/format/torch_file.h"
#include "framework/util/errors.h"
#include "framework/util/format.h"

namespace anymesh {

// Returns an attribute of argparse, or the item if it is a list of one, as Megatron-DeepSpeed's
// num_experts is.
inline Value single(const Value& value) {
  return value.is_sequence() && value.size() == 1 ? value.at(0) : value;
}

// Returns the arguments of the run that saved, or an empty dict if a model-states file has none.
inline Value args_of(const Value& metadata) {
  return metadata.find(keys::kArgs).value_or(Value::dict());
}

// Returns an attribute as a command line writes it. Throws a DamagedFile for an object, or for a
// list of anything but integers.
inline std::string argument_text(const Value& value) {
  if (value.kind() == Value::Kind::kBool) return value.as_bool() ? "true" : "false";
  if (value.is_int()) return std::to_string(value.as_int());
  if (value.is_string()) return value.as_string();
  if (value.is_sequence()) return list_text(value.as_ints());
  if (value.kind() != Value::Kind::kFloat) value.fail("a number, a text, True or False");
  return string_printf("%.17g", value.as_double());
}

// Returns the words of a flag with this attribute: one, or those of a list of texts.
inline std::vector<std::string> argument_words(const Value& value) {
  if (!value.is_sequence() || value.size() == 0 || !value.at(0).is_string())
    return {argument_text(value)};
  return value.as_strings();
}

// Sets flags from the `args` of a checkpoint: the flag --num-layers is the attribute num_layers.
// Leaves out attributes that `args` lacks, that already are the flag's value, or that `wanted`
// refuses. Throws a DamagedFile that names a value that a flag cannot have.
inline void read_args(FlagTable& flags, const Value& args,
                      const std::function<bool(const Setting&)>& wanted = {}) {
  for (const Setting& setting : flags.settings()) {
    const Value value = single(args.find(setting.dest));
    if (!value || value == value_of(setting.value) || (wanted && !wanted(setting))) continue;
    try {
      flags.set(setting.flag, value.where(), argument_words(value));
    } catch (const UserError& error) {
      throw DamagedFile(error.what());
    }
  }
}

}  // namespace anymesh
