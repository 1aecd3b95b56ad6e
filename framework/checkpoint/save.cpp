#include <c10/util/StringUtil.h>
#include <torch/types.h>

#include <algorithm>
#include <cstdio>

#include "framework/checkpoint/checkpoint.h"
#include "framework/checkpoint/format/file_io.h"
#include "framework/checkpoint/format/names.h"
#include "framework/checkpoint/format/torch_file.h"
#include "framework/checkpoint/metadata.h"
#include "framework/checkpoint/rank_files.h"
#include "framework/checkpoint/save_agreement.h"
#include "framework/checkpoint/tag_folder.h"
#include "framework/comm/agreement.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

std::string place_of(const CheckpointedRun& run, int rank) {
  const Coord at = run.grid.topology.coord_of(rank);
  return c10::str("rank ", rank, " (pp ", at.pp, ", dp ", at.dp, ", tp ", at.tp, ")");
}

}  // namespace

void expect_all_ranks(const CheckpointedRun& run, const char* what) {
  std::string absent;
  for (const int rank : run.grid.world->roll_call(run.config.patience))
    absent += (absent.empty() ? "" : ", ") + place_of(run, rank);
  TORCH_CHECK(absent.empty(), what, ": ", absent, " did not call it within ",
              run.config.patience.count(),
              " s of the others; every rank must. Nothing was written. ",
              "(--distributed-timeout-minutes sets how long ranks wait)");
}

std::string agreed_tag(const CheckpointedRun& run, const SaveOptions& options, int64_t iteration) {
  const std::string mine = options.tag.empty() ? tag_folder(iteration) : options.tag;
  const std::vector<std::string> tags = gather_strings(*run.grid.world, mine);
  const auto other = std::find_if(tags.begin(), tags.end(),
                                  [&](const std::string& tag) { return tag != tags[0]; });
  if (other != tags.end() && run.config.tag_validation != TagValidation::Ignore) {
    const std::string text =
        c10::str("save_checkpoint: tags differ: rank 0 has '", tags[0], "', ",
                 place_of(run, static_cast<int>(other - tags.begin())), " has '", *other, "'");
    if (run.config.tag_validation == TagValidation::Fail)
      throw CollectiveError(text + " (checkpoint.tag_validation is Fail). Nothing was written.");
    if (run.grid.world->rank() == 0)
      std::fprintf(stderr, "WARNING: %s; rank 0's is used\n", text.c_str());
  }
  const std::string& tag = tags[0];
  const bool is_name = tag != "." && tag != ".." && tag.find_first_of("/\n\r") == std::string::npos,
             is_taken = tag == kLatestFile || tag == kLatestUniversalFile ||
                        tag == kZeroToFp32File || tag.ends_with(kTemporarySuffix) ||
                        tag.ends_with(kReplacedSuffix);
  if (!is_name || is_taken || std::isspace(static_cast<unsigned char>(tag.back())))
    throw CollectiveError(c10::str("save_checkpoint: tag '", tag,
                                   "' is not the name of a folder in save_dir (no /, no space at "
                                   "its end; ",
                                   kLatestFile, ", ", kLatestUniversalFile, ", ", kZeroToFp32File,
                                   ", *", kTemporarySuffix, " and *", kReplacedSuffix,
                                   " are taken)"));
  return tag;
}

void add_client_state(Value& metadata, const Value& client_state) {
  if (!client_state) return;
  for (const auto& [key, value] : client_state.entries()) {
    TORCH_CHECK(key.is_string(), "client_state: the key ", key.found(), " is not a string");
    TORCH_CHECK(!metadata.contains(key.as_string()), "client_state: the key ", key.found(),
                " is the checkpoint's own; take another");
    metadata.set(key.as_string(), value);
  }
}

fs::path save_16bit_model(const fs::path& save_dir, const std::string& save_filename,
                          const CheckpointedRun& run, bool exclude_frozen_parameters) {
  Communicator& world = *run.grid.world;
  expect_all_ranks(run, "save_16bit_model");
  const fs::path path = save_dir / save_filename, beside = temporary_of(path);
  all_or_none(world, [&] {
    if (world.rank() == 0) fs::create_directories(save_dir);
  });
  write_whole_model(run, {.exclude_frozen_parameters = exclude_frozen_parameters},
                    [&](const std::string&, const Value& model, int) {
                      write_torch_file(beside, model, /*threads=*/1);
                      sync_file(beside);
                    });
  // Not before all ranks have sent what was in theirs.
  all_or_none(world, [&] {
    if (world.rank() == 0) rename_durably(beside, path);
  });
  return path;
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
    SaveSize::Kind& kind = !file                              ? size.whole_model
                           : file->kind == Kind::kLayer       ? size.layers
                           : file->kind == Kind::kOptimStates ? size.optimizer_states
                                                              : size.model_states;
    ++kind.files;
    kind.bytes += static_cast<int64_t>(torch_file_size(name, value));
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
