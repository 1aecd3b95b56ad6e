#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "framework/format/whole.h"
#include "tools/hf/gpt/config.h"

namespace anymesh {

// The weights of a Hugging Face folder, under the names that transformers' model has. The
// additions of a trainer's wrappers are taken off, with a note:
//
//   module._orig_mod.model.layers.0._checkpoint_wrapped_module.mlp   model.layers.0.mlp
//
// Leaves out names of the index that no file has and the model does not need, as of a tied head.
struct HfWeights {
  CheckpointReader checkpoint;
  std::vector<std::string> notes;  // for the user, a line each
};

// Throws a DamagedFile for a folder that has other weights, too few of them, or an adapter's.
HfWeights open_hf_weights(const std::filesystem::path& folder, const HfModel& model);

// Throws a DamagedFile if the folder has an adapter of PEFT, with the command that merges it.
void refuse_adapter(const std::filesystem::path& folder);

// Returns the name of the output layer's weight.
std::string head_name(const HfModel& model);

// Returns a name as files of the bare model have it, without the family's `base`.
std::string bare_name(const std::string& name, const Family& family);

}  // namespace anymesh
