#pragma once

#include <nlohmann/json.hpp>

#include "framework/format/io.h"
#include "framework/format/torch_file.h"
#include "framework/format/whole.h"
#include "tests/support/checkpoints.h"
#include "tests/tools/hf_models.h"
#include "tools/hf/gpt/convert.h"

namespace anymesh {

// Returns a model's tensors in one dtype. Their elements are small integers, which all dtypes have.
inline NamedTensors numbered_tensors(const HfModel& model) {
  NamedTensors tensors;
  float next = 1;
  for (const HfParameter& parameter : hf_parameters(model)) {
    for (const HfTensor& tensor : parameter.theirs) {
      std::vector<float> values(static_cast<size_t>(numel(tensor.shape)));
      for (float& value : values) value = next = next >= 250 ? 1 : next + 1;
      tensors.emplace_back(tensor.name, float_tensor(tensor.shape, values));
    }
  }
  return tensors;
}

class HfFolder : public TempFolder {
 protected:
  fs::path theirs_ = folder_ / "theirs", save_ = folder_ / "save", back_ = folder_ / "back";

  void write(const HfModel& model, const NamedTensors& tensors) {
    fs::create_directories(theirs_);
    write_file(theirs_ / kHfConfigFile, hf_config_text(model));
    write_safetensors(theirs_ / "model.safetensors", tensors);
  }
  void write(const HfModel& model) { write(model, numbered_tensors(model)); }

  void change_config(const std::string& key, nlohmann::json value) {
    auto config = nlohmann::json::parse(read_file(theirs_ / kHfConfigFile));
    config[key] = std::move(value);
    write_file(theirs_ / kHfConfigFile, config.dump());
  }

  // Returns the error of an import, which must leave nothing.
  std::string refusal() {
    const std::string message = message_of([&] { import_hf(theirs_, save_, {}); });
    EXPECT_FALSE(fs::exists(save_)) << message;
    return message;
  }

  void expect_same(const fs::path& a, const fs::path& b) {
    const Checkpoint first = open_checkpoint(a, 1), second = open_checkpoint(b, 1);
    ASSERT_EQ(first.names(), second.names());
    EXPECT_GT(first.names().size(), 10u);
    for (const std::string& name : first.names()) {
      EXPECT_EQ(first.parameter(name).shape, second.parameter(name).shape) << name;
      EXPECT_EQ(floats(first.parameter(name).weight()), floats(second.parameter(name).weight()))
          << name;
    }
  }
};

}  // namespace anymesh
