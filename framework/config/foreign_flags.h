// Megatron-DeepSpeed's flags that this trainer doesn't have, so that existing scripts either run
// unchanged or are told why not. Three kinds, told apart by the fields:
//
//   ignored   no reason                 changes speed, logs or memory there, no result here
//   refused   a reason                  asks for a feature that this program lacks
//   fixed     a reason and `accepted`   fine with one of these values: it happens anyway
//
// A Megatron flag that is not even listed is an unknown flag.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace anymesh {

struct ForeignFlag {
  std::string_view name;
  bool takes_value = false;
  std::string_view reason = {};    // completes "--name: ..."
  std::string_view accepted = {};  // values separated by '|'
};

std::span<const ForeignFlag> foreign_flags();
const ForeignFlag* find_foreign_flag(std::string_view name);  // nullptr if not listed

// Whether `value` is one of the accepted.
bool is_accepted(std::string_view accepted, std::string_view value);

// Throws ParseError if the flag with this value is refused.
void check_foreign_flag(const ForeignFlag& flag, const std::string& value);

}  // namespace anymesh
