// Megatron-DeepSpeed's flags and DeepSpeed's JSON keys that this trainer does not have. Scripts and
// configurations that use them either run unchanged or are told why not. The fields tell three
// kinds apart:
//
//   ignored   no reason                 changes speed, logs or memory there, no result here
//   refused   a reason                  asks for a feature that this program lacks
//   fixed     a reason and `accepted`   fine with one of these values: it happens anyway
//
// A flag or key that is not listed at all is unknown. The keys are in deepspeed_json.cpp.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace anymesh {

struct Foreign {
  std::string_view names;          // the names that share the fields below, separated by '|'
  bool takes_value = false;        // whether the flag takes a value; keys always do
  std::string_view reason = {};    // completes "--name value: ..."
  std::string_view accepted = {};  // values separated by '|'

  bool ignored() const { return reason.empty(); }
  // Throws UserError if it is refused. `origin` names the source, as in FlagTable::set().
  void check(const std::string& origin, std::string_view value) const;
};

std::span<const Foreign> foreign_flags();
// Returns nullptr if the name is not listed.
const Foreign* find_foreign(std::span<const Foreign> list, std::string_view name);

// Returns the flags that are ignored, for --help: lines of "  --a --b".
std::string ignored_flags_text(std::span<const Foreign> list);

// Flags as the programs of DeepSpeed, torchrun and Hugging Face spell them, and short forms.
struct Synonym {
  std::string_view names;  // separated by '|'; words are joined by '-', which matches '_' too
  std::string_view advice;
};

std::span<const Synonym> synonyms();
// Returns advice on the flag to write in place of this name; empty if there is none.
std::string_view advice_on(std::string_view name);

// Returns whether the list, "a|b|c", has the value.
bool is_one_of(std::string_view value, std::string_view list);

}  // namespace anymesh
