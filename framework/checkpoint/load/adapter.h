#pragma once

#include <filesystem>
#include <set>
#include <string>

#include "framework/checkpoint/checkpoint.h"
#include "framework/format/torch_file.h"

namespace anymesh {

// A run that trains an adapter beside a frozen base (ModelFacts::adapter_flags) may load each from
// a checkpoint of its own: first a base, as weights alone (load_module_only), and then an adapter
// that was saved without one (exclude_frozen_parameters).

// Whether a checkpoint is of a base alone, by the arguments of its run.
bool is_base(const Value& metadata, const CheckpointedRun& run);

// Throws if such a run would go on from a base alone, which has none of its moments.
void check_has_adapter(const Value& metadata, const std::filesystem::path& folder,
                       const CheckpointedRun& run, const LoadOptions& options);

// Returns why such a run does not take a checkpoint, or "": it has no adapter and is not loaded as
// weights alone, so that nothing could go on; or it lacks frozen parameters, and no load has set
// them before. `has_adapter`: it has some trained parameter.
std::string adapter_refusal(const Checkpoint& checkpoint, const CheckpointedRun& run,
                            const LoadOptions& options, bool has_adapter,
                            const std::set<std::string>& frozen_missing);

// Returns a line on the half that the checkpoint lacks, or "".
std::string adapter_note(bool has_adapter, const std::set<std::string>& frozen_missing);

}  // namespace anymesh
