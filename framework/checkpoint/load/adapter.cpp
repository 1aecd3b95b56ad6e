#include "framework/checkpoint/load/adapter.h"

#include <c10/util/StringUtil.h>

#include "framework/checkpoint/args.h"
#include "framework/util/shell_word.h"

namespace anymesh {
namespace {

// Returns why a checkpoint without an adapter is refused, or "" if it is loaded as weights alone,
// or not strictly.
std::string refusal_of_base(const std::filesystem::path& folder, const CheckpointedRun& run,
                            const LoadOptions& options) {
  if (options.load_module_only || !options.load_module_strict) return "";
  return c10::str(folder.string(), ": has no adapter (--", run.config.model.adapter_flags[0],
                  ") to go on with. A new one begins beside this model with "
                  "--pretrained-checkpoint ",
                  shell_word(folder.parent_path()), ", in place of --load");
}

}  // namespace

bool is_base(const Value& metadata, const CheckpointedRun& run) {
  const std::vector<std::string>& adapter = run.config.model.adapter_flags;
  const Value args = args_of(metadata);
  for (const Setting& setting : run.config.settings) {
    if (adapter.empty() || setting.flag != adapter[0] || args.size() == 0) continue;
    const Value theirs = args.find(setting.dest);
    return theirs.is_none() || theirs == Value(0);
  }
  return false;
}

void check_has_adapter(const Value& metadata, const std::filesystem::path& folder,
                       const CheckpointedRun& run, const LoadOptions& options) {
  if (!is_base(metadata, run)) return;
  const std::string refusal = refusal_of_base(folder, run, options);
  TORCH_CHECK(refusal.empty(), refusal);
}

std::string adapter_refusal(const Checkpoint& checkpoint, const CheckpointedRun& run,
                            const LoadOptions& options, bool has_adapter,
                            const std::set<std::string>& frozen_missing) {
  const std::string path = checkpoint.path.string();
  if (!has_adapter)
    if (std::string refusal = refusal_of_base(checkpoint.path, run, options); !refusal.empty())
      return refusal;
  if (frozen_missing.empty() || run.base_loaded) return "";
  if (!has_adapter)
    return c10::str(path, ": is not this model; it lacks ", c10::Join(", ", frozen_missing));
  const Value args = checkpoint.metadata ? args_of(checkpoint.metadata) : Value::dict(),
              base = args.find("pretrained_checkpoint").value_or("");
  return c10::str(
      path,
      ": has an adapter without the model beside it (--exclude-frozen-parameters); give "
      "the model too: --pretrained-checkpoint ",
      base == Value("") ? "DIR" : shell_word(base.as_string()), " --load ",
      shell_word(checkpoint.path.parent_path()));
}

std::string adapter_note(bool has_adapter, const std::set<std::string>& frozen_missing) {
  if (!has_adapter) return "the checkpoint has no adapter: a new one begins";
  return frozen_missing.empty() ? "" : "the checkpoint has an adapter without the model beside it";
}

}  // namespace anymesh
