#pragma once

#include <sstream>
#include <string>

#include "models/gpt/gpt_config.h"

namespace anymesh {

// Returns `gpt` with these flags of pretrain_gpt: "--swiglu --window-size 2,0".
inline GptConfig with_flags(GptConfig gpt, const std::string& flags) {
  FlagTable table("test", "");
  add_flags(table, gpt);
  std::istringstream words(flags);
  for (std::string word, value; words >> word;) {
    const FlagTable::Flag* flag = table.find(word.substr(2));
    if (flag && std::holds_alternative<bool*>(flag->field))
      value = flag->on ? "true" : "false";
    else
      words >> value;
    table.set(word.substr(2), word, {value});
  }
  return gpt;
}

}  // namespace anymesh
