#pragma once

#include <string>
#include <variant>
#include <vector>

#include "framework/format/torch_file/value.h"

namespace anymesh {

// Returns a flag's value (Setting::value of config/flags.h) as an argparse namespace holds it, or
// None if it is not set.
template <class... Types>
Value value_of(const std::variant<Types...>& setting) {
  struct Visitor {
    Value operator()(std::monostate) const { return {}; }
    Value operator()(const std::vector<std::string>& v) const { return Value::list_of(v); }
    Value operator()(const std::vector<int64_t>& v) const { return Value::list_of(v); }
    Value operator()(bool v) const { return v; }
    Value operator()(int64_t v) const { return v; }
    Value operator()(double v) const { return v; }
    Value operator()(const std::string& v) const { return v; }
  };
  return std::visit(Visitor{}, setting);
}

}  // namespace anymesh
