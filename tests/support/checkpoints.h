#pragma once

#include <algorithm>
#include <functional>

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
inline fs::path copy_of(const std::string& name, const fs::path& folder) {
  const auto tag = folder / "damaged";
  fs::copy(tag_of(name), tag);
  return tag;
}

inline void change(const fs::path& file, const std::function<void(Value&)>& edit) {
  Value value = read_torch_file(file);
  edit(value);
  const auto beside = fs::path(file).concat(".new");
  write_torch_file(beside, value);
  fs::rename(beside, file);
}

}  // namespace anymesh
