#include "framework/checkpoint/checkpoint.h"
#include "framework/checkpoint/save/optimizer_states.h"
#include "framework/checkpoint/save/save_checks.h"
#include "framework/comm/agreement.h"
#include "framework/format/folder.h"
#include "framework/format/io.h"
#include "framework/format/torch_file.h"

namespace anymesh {

namespace fs = std::filesystem;

fs::path save_16bit_model(const fs::path& save_dir, const std::string& save_filename,
                          const CheckpointedRun& run, bool exclude_frozen_parameters) {
  Communicator& world = *run.grid.world;
  expect_all_ranks(run, "save_16bit_model");
  const fs::path path = save_dir / save_filename;
  std::optional<OutputLock> lock;
  std::optional<NewFile> file;
  all_or_none(world, [&] {
    if (world.rank() != 0) return;
    fs::create_directories(save_dir);
    if (auto ours = claim_output("save_16bit_model", path, {"a torch file", "PK\x03\x04"}))
      lock.emplace(std::move(*ours));
    file.emplace(path);
  });
  write_whole_model(run, {.exclude_frozen_parameters = exclude_frozen_parameters},
                    [&](const std::string&, const Value& model, int) {
                      write_torch_file(file->path(), model, /*threads=*/1);
                      sync_file(file->path());
                    });
  // Renames only after all ranks have sent their parts.
  all_or_none(world, [&] {
    if (file) file->publish();
  });
  return path;
}

}  // namespace anymesh
