#include "framework/checkpoint/save/retention.h"

#include <c10/util/StringUtil.h>
#include <torch/types.h>

#include <algorithm>

#include "framework/checkpoint/metadata.h"
#include "framework/checkpoint/save/optimizer_states.h"
#include "framework/checkpoint/save/save_checks.h"
#include "framework/checkpoint/save/save_folder.h"
#include "framework/comm/agreement.h"
#include "framework/format/io.h"
#include "framework/format/layout.h"
#include "framework/format/torch_file.h"
#include "framework/util/format.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

std::string listed(const char* what, const SaveSize::Kind& kind) {
  return kind.files == 0 ? ""
                         : c10::str(", ", what, " ", size_text(kind.bytes), " (", kind.files, ")");
}

// Returns why the tag is still there, or an empty string.
std::string remove_tag(const fs::path& folder, const fs::path& doomed) {
  const IsOurs is_ours = tag_entries(folder);
  const std::string foreign = first_foreign_entry(folder, is_ours);
  if (!foreign.empty()) return foreign + " is no file of a checkpoint";
  std::error_code error;
  fs::rename(folder, doomed, error);
  return error ? error.message() : remove_ours(doomed, is_ours);
}

}  // namespace

std::vector<std::string> remove_old_checkpoints(const fs::path& save_dir, int64_t limit,
                                                int64_t retain_interval) {
  const std::string latest = read_tag(save_dir / kLatestFile);
  std::vector<std::string> lines;
  const auto newest = step_of_tag(latest);
  int64_t kept = 0;
  for (const auto& [step, tag] : tags_by_step(save_dir)) {
    if (newest && step > *newest) continue;  // the run resumed from an earlier one
    const bool retained = retain_interval > 0 && step % retain_interval == 0;
    if (kept++ < limit || retained || tag == latest) continue;
    const fs::path folder = save_dir / tag, doomed = temporary_of(folder);
    const std::string failure = remove_tag(folder, doomed);
    lines.push_back(failure.empty() ? "removed " + folder.string()
                                    : "WARNING: cannot remove " + folder.string() + ": " + failure);
  }
  return lines;
}

int64_t most_checkpoints(const SavePlan& plan) {
  if (plan.limit == 0) return plan.saves;
  const auto tags = tags_by_step(plan.folder);
  const auto there = std::ranges::count_if(tags, [&](const auto& tag) {  // removable ones
    return plan.retain_interval == 0 || tag.first % plan.retain_interval != 0;
  });
  const int64_t beyond = std::max<int64_t>(1, plan.limit + 1 - there);
  return std::min(plan.saves, beyond + plan.retained);
}

std::vector<std::string> preflight(const SaveSize& size, const SavePlan& plan) {
  const int64_t most = most_checkpoints(plan), needed = most * size.bytes_here,
                free = static_cast<int64_t>(fs::space(existing_folder(plan.folder)).available);
  const std::string each =
      c10::str("each checkpoint: ", size_text(size.bytes()), " in ", size.files(),
               " files: ", listed("model states", size.model_states).substr(2),
               listed("layers", size.layers), listed("optimizer states", size.optimizer_states),
               listed("whole model", size.whole_model));
  const std::string here = size.bytes_here == size.bytes()
                               ? ""
                               : c10::str(", each ", size_text(size.bytes_here), " here");
  const std::string all = c10::str("--save ", plan.folder.string(), ": ", plan.saves,
                                   " to come, at most ", most, " more at a time", here, ": ",
                                   size_text(needed), " of the ", size_text(free), " free");
  if (needed <= free) return {each, all};
  const int64_t fit = free / std::max<int64_t>(1, size.bytes_here) - 1 - plan.retained;
  TORCH_CHECK(false, all, " do not suffice; ", each, ". ",
              fit >= 1 ? c10::str("--save-total-limit ", fit, " would fit.")
                       : "Not one fits beside the one before it: free space, or give another "
                         "--save.");
}

SaveSize save_size(const fs::path& save_dir, const CheckpointedRun& run, const TrainState& state,
                   const SaveOptions& options) {
  Communicator& world = *run.grid.world;
  Value metadata = model_states(run, state, options);
  SaveSize size;
  const WriteFile count = [&](const std::string& name, const Value& value, int owner) {
    if (owner != kAlone && owner != run.grid.coord.dp) return;
    using Kind = CheckpointFileName::Kind;
    const auto file = parse_checkpoint_file_name(name);
    const auto is = [&](Kind kind) { return file && file->kind == kind; };
    SaveSize::Kind& kind = !file                                   ? size.whole_model
                           : is(Kind::kLayer) || is(Kind::kExpert) ? size.layers
                           : is(Kind::kOptimStates) || is(Kind::kExpertOptim)
                               ? size.optimizer_states
                               : size.model_states;
    ++kind.files;
    kind.bytes += static_cast<int64_t>(streamed_torch_file(name, value).layout.size);
  };
  all_or_none(world, [&] { add_client_state(metadata, options.client_state); });
  all_or_none(world, [&] { write_rank_files(run, state, options, metadata, count); });
  if (options.save_16bit_model) write_whole_model(run, options, count);
  fs::path folder;
  all_or_none(world, [&] { folder = existing_folder(save_dir); });
  torch::Tensor on_disks = torch::zeros({world.size()}, torch::kLong);
  int64_t& here = on_disks.data_ptr<int64_t>()[first_to_see(world, folder)];
  here = size.bytes();
  world.all_reduce(on_disks);
  world.all_reduce(torch::from_blob(&size, {sizeof size / sizeof(int64_t)}, torch::kLong));
  size.bytes_here = here;
  return size;
}

}  // namespace anymesh
