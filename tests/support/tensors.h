#pragma once

#include "framework/format/torch_file.h"

namespace anymesh {

// Calls visit(tensor) for every tensor in a value, wherever it is.
template <class Visit>
void for_each_tensor(const Value& value, const Visit& visit) {
  const auto items = [&](const std::vector<Value>& values) {
    for (const Value& item : values) for_each_tensor(item, visit);
  };
  const auto entries = [&](const std::vector<Value::Entry>& pairs) {
    for (const auto& [key, item] : pairs) items({key, item});
  };
  if (value.is_tensor()) visit(value.as_tensor());
  if (value.is_sequence()) items(value.items());
  if (value.is_dict()) entries(value.entries());
  if (!value.is_object()) return;
  const Value::Object& object = value.as_object();
  items(object.args);
  items(object.items);
  entries(object.entries);
  if (object.state) for_each_tensor(*object.state, visit);
}

}  // namespace anymesh
