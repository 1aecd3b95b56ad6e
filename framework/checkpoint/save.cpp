#include "framework/checkpoint/checkpoint.h"
#include "framework/checkpoint/format/file_io.h"
#include "framework/checkpoint/format/names.h"
#include "framework/checkpoint/format/torch_file.h"
#include "framework/checkpoint/metadata.h"
#include "framework/checkpoint/rank_files.h"
#include "framework/checkpoint/save_agreement.h"
#include "framework/comm/agreement.h"

namespace anymesh {

namespace fs = std::filesystem;

fs::path save_16bit_model(const fs::path& save_dir, const std::string& save_filename,
                          const CheckpointedRun& run, bool exclude_frozen_parameters) {
  Communicator& world = *run.grid.world;
  expect_all_ranks(run, "save_16bit_model");
  const fs::path path = save_dir / save_filename,
                 beside = path.string() + std::string(kTemporarySuffix);
  all_or_none(world, [&] {
    if (world.rank() == 0) fs::create_directories(save_dir);
  });
  write_whole_model(run, {.exclude_frozen_parameters = exclude_frozen_parameters},
                    [&](const std::string&, const Value& model) {
                      write_torch_file(beside, model);
                      sync_file(beside);
                      rename_durably(beside, path);
                    });
  return path;
}

SaveSize save_size(const CheckpointedRun& run, const TrainState& state,
                   const SaveOptions& options) {
  Value metadata = model_states(run, state);
  constexpr int64_t kWholeModel = 4;  // after the kinds that have a rank in their names
  torch::Tensor counts = torch::zeros({5, 2}, torch::kLong);  // [kind, files and bytes]
  const WriteFile count = [&](const std::string& name, const Value& value) {
    const auto file = parse_checkpoint_file_name(name);
    torch::Tensor kind = counts[file ? static_cast<int64_t>(file->kind) : kWholeModel];
    kind[0] += 1;
    kind[1] += static_cast<int64_t>(torch_file_size(value));
  };
  all_or_none(*run.grid.world, [&] { add_client_state(metadata, options.client_state); });
  all_or_none(*run.grid.world, [&] { write_rank_files(run, state, options, metadata, count); });
  if (options.save_16bit_model) write_whole_model(run, options, count);
  run.grid.world->all_reduce(counts);
  const auto row_of = [&counts](int64_t kind) {
    const torch::Tensor row = counts[kind];
    return SaveSize::Kind{row[0].item<int64_t>(), row[1].item<int64_t>()};
  };
  using Kind = CheckpointFileName::Kind;
  const auto of = [&](Kind kind) { return row_of(static_cast<int64_t>(kind)); };
  SaveSize size{of(Kind::kModelStates), of(Kind::kLayer), of(Kind::kOptimStates),
                row_of(kWholeModel)};
  const auto [files, bytes] = of(Kind::kZero3ModelStates);
  size.model_states.files += files;
  size.model_states.bytes += bytes;
  return size;
}

}  // namespace anymesh
