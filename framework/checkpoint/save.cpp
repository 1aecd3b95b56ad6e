#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstdio>

#include "framework/checkpoint/checkpoint.h"
#include "framework/checkpoint/format/file_io.h"
#include "framework/checkpoint/format/names.h"
#include "framework/checkpoint/format/torch_file.h"
#include "framework/checkpoint/metadata.h"
#include "framework/checkpoint/rank_files.h"
#include "framework/checkpoint/tag_folder.h"
#include "framework/checkpoint/zero_to_fp32_script.h"
#include "framework/comm/agreement.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

// Beside the tags of a partitioned optimizer, as DeepSpeed leaves it. Never replaced: it may be the user's.
void write_zero_to_fp32(const fs::path& save_dir) {
  const fs::path script = save_dir / kZeroToFp32File;
  if (fs::exists(script)) return;
  write_text_atomically(script, kZeroToFp32Script);
  fs::permissions(script, fs::perms::owner_exec | fs::perms::group_exec | fs::perms::others_exec,
                  fs::perm_options::add);
}

std::string place_of(const CheckpointedRun& run, int rank) {
  const Coord at = run.grid.topology.coord_of(rank);
  return c10::str("rank ", rank, " (pp ", at.pp, ", dp ", at.dp, ", tp ", at.tp, ")");
}

void expect_all_ranks(const CheckpointedRun& run, const char* what) {
  std::string absent;
  for (const int rank : run.grid.world->roll_call(run.patience))
    absent += (absent.empty() ? "" : ", ") + place_of(run, rank);
  TORCH_CHECK(absent.empty(), what, ": ", absent, " did not call it within ", run.patience.count(),
              " s of the others; every rank must. Nothing was written. ",
              "(--distributed-timeout-minutes sets how long ranks wait)");
}

// Rank 0's tag, which the others should have too.
std::string agreed_tag(const CheckpointedRun& run, const SaveOptions& options, int64_t iteration) {
  const std::string mine = options.tag.empty() ? tag_folder(iteration) : options.tag;
  const std::vector<std::string> tags = gather_strings(*run.grid.world, mine);
  const auto other = std::find_if(tags.begin(), tags.end(),
                                  [&](const std::string& tag) { return tag != tags[0]; });
  if (other != tags.end() && run.tag_validation != TagValidation::Ignore) {
    const std::string text =
        c10::str("save_checkpoint: tags differ: rank 0 has '", tags[0], "', ",
                 place_of(run, static_cast<int>(other - tags.begin())), " has '", *other, "'");
    if (run.tag_validation == TagValidation::Fail)
      throw CollectiveError(text + " (checkpoint.tag_validation is Fail). Nothing was written.");
    if (run.grid.world->rank() == 0)
      std::fprintf(stderr, "WARNING: %s; rank 0's is used\n", text.c_str());
  }
  const std::string& tag = tags[0];
  const bool is_name = tag != "." && tag != ".." && tag.find_first_of("/\n\r") == std::string::npos;
  if (!is_name || std::isspace(static_cast<unsigned char>(tag.back())))
    throw CollectiveError("save_checkpoint: tag '" + tag +
                          "' is not the name of a folder in save_dir (no /, no space at its end)");
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

}  // namespace

fs::path save_checkpoint(const fs::path& save_dir, const CheckpointedRun& run,
                         const TrainState& state, const SaveOptions& options) {
  Communicator& world = *run.grid.world;
  expect_all_ranks(run, "save_checkpoint");
  const std::string tag = agreed_tag(run, options, state.iteration);
  Value metadata = model_states(run, state);
  all_or_none(world, [&] { add_client_state(metadata, options.client_state); });
  TagFolder folder(world, save_dir, tag);
  const WriteFile write = [&](const std::string& name, const Value& value) {
    folder.write(name, value);
  };
  try {
    all_or_none(world, [&] { write_rank_files(run, state, options, metadata, write); });
    if (options.save_16bit_model) write_whole_model(run, options, write);
    folder.commit(world, state.iteration, [&] {
      if (run.optimizer.options().stage > 0 && !options.weights_only) write_zero_to_fp32(save_dir);
      if (options.save_latest) write_text_atomically(save_dir / kLatestFile, tag);
    });
  } catch (const CollectiveError&) {
    folder.abandon();
    throw;
  }
  return folder.path();
}

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
