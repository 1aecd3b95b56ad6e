#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "framework/format/io.h"
#include "framework/format/reshard.h"
#include "framework/format/whole.h"
#include "tools/hf/gpt/config.h"
#include "tools/hf/gpt/peft.h"

namespace anymesh {

// The universal folder that an import writes.

// A parameter as it is written: its weight, and the optimizer's states if there are any.
struct OurParameter {
  std::string name;
  Shape shape;
  std::map<std::string, TensorRecord, std::less<>> states;
  Value step = {};
  std::string theirs = {};  // the first of the tensors that it was made from
};

// The run that goes on from an import.
struct PriorRun {
  const Checkpoint* checkpoint = nullptr;  // with its metadata; null: it begins
  const UncutModel* model = nullptr;       // with the optimizer's groups, by their names

  int64_t iteration() const;
};

// Returns the files of a universal folder. Their tensors are read as they are written.
std::vector<StreamedFile> universal_files(const std::filesystem::path& folder, const HfModel& model,
                                          const std::vector<OurParameter>& ours,
                                          const PeftAdapter* adapter, const PriorRun& prior);

}  // namespace anymesh
