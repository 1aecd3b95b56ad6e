#pragma once

#include <algorithm>
#include <functional>
#include <variant>

#include "framework/format/layout.h"
#include "tests/support/fixtures.h"

namespace anymesh {

// Fixtures that have the real converter's universal folder beside the checkpoint.
inline const std::vector<std::string> kConverted = {"z1-bf16-dp2",        "z2-bf16-dp3",
                                                    "z2-bf16-dp2-frozen", "z3-fp32-dp3-frozen",
                                                    "z1-bf16-tp2pp2dp1",  "z1-bf16-tp1pp1dp2"};

inline std::string test_name(const ::testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

inline fs::path tag_of(const std::string& name) {
  const auto checkpoint = fixture(name) / "checkpoint";
  return checkpoint / read_file(checkpoint / kLatestFile);
}

// Copies a fixture's tag folder, to be damaged.
inline fs::path copy_of(const std::string& name, const fs::path& folder,
                        const std::string& tag = "damaged") {
  fs::create_directories(folder);
  fs::copy(tag_of(name), folder / tag);
  return folder / tag;
}

using Edit = std::function<void(Value&)>;
using EditFloats = std::function<void(std::vector<float>&)>;
// A key, or the number of an entry or item; kEach for all of them.
using PathStep = std::variant<std::string_view, int>;
inline constexpr int kEach = -1;

// Edits what is at a path inside a value: {keys::kParamShapes, 0} is its first parameter group.
inline void edit_at(Value& value, const std::vector<PathStep>& path, const Edit& edit) {
  if (path.empty()) return edit(value);
  const std::vector<PathStep> rest(path.begin() + 1, path.end());
  if (const auto* key = std::get_if<std::string_view>(&path[0])) {
    Value item = value.at(*key);
    edit_at(item, rest, edit);
    value.set(*key, item);
    return;
  }
  const int chosen = std::get<int>(path[0]);
  auto entries = value.is_dict() ? value.entries() : std::vector<Value::Entry>();
  auto items = value.is_dict() ? std::vector<Value>() : value.items();
  for (size_t i = 0; i < value.size(); ++i)
    if (chosen == kEach || i == static_cast<size_t>(chosen))
      edit_at(value.is_dict() ? entries[i].second : items[i], rest, edit);
  value = value.kind() == Value::Kind::kDict ? Value::dict(entries)
          : value.is_dict()                  ? Value::ordered_dict(entries)
                                             : Value::list(items);
}

// Edits a torch file, or what is at a path inside it.
inline void change(const fs::path& file, const Edit& edit) {
  Value value = read_torch_file(file);
  edit(value);
  const auto beside = fs::path(file).concat(".new");
  write_torch_file(beside, value);
  fs::rename(beside, file);
}
inline void change(const fs::path& file, const std::vector<PathStep>& path, const Edit& edit) {
  change(file, [&](Value& value) { edit_at(value, path, edit); });
}
// Edits the elements of the fp32 tensor at a path. Their number may change where it has one dim.
inline void change_floats(const fs::path& file, const std::vector<PathStep>& path,
                          const EditFloats& edit) {
  change(file, path, [&](Value& value) {
    std::vector<float> values = floats(value.as_tensor());
    edit(values);
    Shape shape = value.as_tensor().shape;
    if (shape.size() == 1) shape[0] = static_cast<int64_t>(values.size());
    value = float_tensor(shape, values);
  });
}

// The path of each group's states in an optimizer file of ZeRO 1 or 2.
inline const std::vector<PathStep> kEachState = {keys::kOptimizerStateDict,
                                                 keys::kBaseOptimizerState, keys::kState, kEach};

}  // namespace anymesh
