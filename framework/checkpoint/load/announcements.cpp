#include "framework/checkpoint/load/announcements.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <optional>
#include <set>

#include "framework/checkpoint/metadata.h"
#include "framework/comm/agreement.h"
#include "framework/format/layout.h"
#include "framework/format/whole.h"
#include "framework/util/errors.h"

namespace anymesh {

std::string announce_fused_order(const Value& metadata) {
  if (!is_megatrons(metadata)) return "";
  return "the checkpoint is Megatron-DeepSpeed's: query_key_value is read as per head or group its "
         "queries, key and value. Its versions since December 2024 order them differently; if this "
         "is of one, the loss jumps here";
}

std::string announce_names(const CheckpointReader& checkpoint, const CheckpointedRun& run) {
  for (const ParamSpec& spec : run.stage.params()) {
    if (checkpoint.contains(spec.name) || !checkpoint.contains(spec.other_name)) continue;
    return c10::str("the checkpoint's parameter names are translated: ", spec.other_name, " is ",
                    spec.name, " here, and in what this run saves");
  }
  return "";
}

std::string announce_hyperparameters(const Value& optimizer_state, const CheckpointedRun& run) {
  const Value groups = optimizer_state ? optimizer_state.find(keys::kParamGroups) : Value();
  if (!groups) return "";
  double ours = 0;
  std::optional<double> theirs;  // none if that rank's stage is frozen
  for (const Value& group : groups.items()) {
    if (const Value decay = group.find(keys::kWeightDecay))
      theirs = std::max(theirs.value_or(0), decay.as_double());
  }
  for (const auto& group : run.optimizer.groups()) ours = std::max(ours, group.weight_decay);
  if (!theirs || *theirs == ours) return "";
  return c10::str("the checkpoint's run had a weight decay of ", *theirs,
                  "; this one goes on with ", ours, ", as its flags say (--weight-decay)");
}

std::string announce_fresh(Communicator& world, const std::vector<std::string>& mine) {
  const std::vector<std::string> all = gather_lines(world, mine);
  const std::set<std::string> names(all.begin(), all.end());
  if (names.empty()) return "";
  return "parameters that the checkpoint has no moments of, as they were not trained, start with "
         "zeros: " +
         c10::Join(", ", names);
}

std::string announce_newer(const std::filesystem::path& load_dir,
                           const std::filesystem::path& folder, const Value& metadata,
                           const LoadOptions& options) {
  if (!options.universal || !std::filesystem::exists(load_dir / kLatestFile)) return "";
  std::string newest;
  try {
    newest = read_tag(load_dir / kLatestFile);
  } catch (const DamagedFile&) {  // it is not the one to load
    return "";
  }
  const int64_t here = train_state_of(metadata).iteration;
  const auto step = step_of_tag(newest);
  if (!step || *step <= here) return "";
  return c10::str("WARNING: ", load_dir.string(), " holds a newer ordinary checkpoint, ", newest,
                  ", than the universal one, ", folder.filename().string(), " (iteration ", here,
                  "). Loading the universal one, as --universal-checkpoint says; ", "convert ",
                  newest, " first if you meant that.");
}

}  // namespace anymesh
