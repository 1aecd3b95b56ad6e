#include "framework/checkpoint/load/announcements.h"

#include <c10/util/StringUtil.h>

#include "framework/checkpoint/metadata.h"
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

std::string announce_names(const Checkpoint& checkpoint, const CheckpointedRun& run) {
  for (const ParamSpec& spec : run.stage.params()) {
    if (checkpoint.contains(spec.name) || !checkpoint.contains(spec.other_name)) continue;
    return c10::str("the checkpoint's parameter names are translated: ", spec.other_name, " is ",
                    spec.name, " here, and in what this run saves");
  }
  return "";
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
