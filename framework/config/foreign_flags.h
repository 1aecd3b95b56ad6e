// What others' scripts and configurations say that this trainer doesn't have, Megatron-DeepSpeed's
// flags and keys of DeepSpeed's JSON, so that they either run unchanged or are told why not. Three
// kinds, told apart by the fields:
//
//   ignored   no reason                 changes speed, logs or memory there, no result here
//   refused   a reason                  asks for a feature that this program lacks
//   fixed     a reason and `accepted`   fine with one of these values: it happens anyway
//
// A flag or key that is not even listed is unknown. The keys are in deepspeed_json.cpp.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace anymesh {

struct Foreign {
  std::string_view names;          // that share what follows, separated by '|'
  bool takes_value = false;        // as a flag; keys all do
  std::string_view reason = {};    // completes "--name value: ..."
  std::string_view accepted = {};  // values separated by '|'

  bool ignored() const { return reason.empty(); }
  // Throws ParseError if it is refused. `origin` is who says what, as in FlagTable::set().
  void check(const std::string& origin, std::string_view value) const;
};

std::span<const Foreign> foreign_flags();
// nullptr if it is not listed.
const Foreign* find_foreign(std::span<const Foreign> list, std::string_view name);

// Flags as DeepSpeed's, torchrun's and Hugging Face's programs spell them, and short forms.
struct Synonym {
  std::string_view names;  // separated by '|'; their words by '-', which stands for '_' too
  std::string_view advice;
};

std::span<const Synonym> synonyms();
// Advice on what to write for a flag of this name; empty if there is none.
std::string_view advice_on(std::string_view name);

// Of "a|b|c".
std::vector<std::string_view> items_of(std::string_view list);
bool is_one_of(std::string_view value, std::string_view list);

}  // namespace anymesh
