#include <torch/types.h>

#include "framework/checkpoint/checkpoint.h"
#include "framework/checkpoint/metadata.h"
#include "framework/checkpoint/save/optimizer_states.h"
#include "framework/checkpoint/save/save_checks.h"
#include "framework/checkpoint/save/save_lock.h"
#include "framework/comm/agreement.h"
#include "framework/format/io.h"
#include "framework/format/layout.h"
#include "framework/format/torch_file.h"

namespace anymesh {

namespace fs = std::filesystem;

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
