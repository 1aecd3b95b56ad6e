#include "framework/checkpoint/save/save_checks.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstdio>

#include "framework/comm/agreement.h"
#include "framework/format/io.h"
#include "framework/format/layout.h"
#include "framework/format/torch_file.h"

namespace anymesh {
namespace {

std::string place_of(const CheckpointedRun& run, int rank) {
  const Coord at = run.grid.topology.coord_of(rank);
  return c10::str("rank ", rank, " (pp ", at.pp, ", dp ", at.dp, ", tp ", at.tp, ")");
}

std::string crc_of(const TensorRecord& tensor) {
  std::vector<std::byte> bytes(tensor.bytes ? tensor.bytes->size() : 0);
  if (tensor.bytes) tensor.bytes->read(0, bytes);
  return std::to_string(crc32(bytes));
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

// A save that needs other ranks while it writes cannot be left to a thread. A run that keeps its
// state on disk has no memory for a snapshot of it.
void refuse_async(const CheckpointedRun& run, const SaveOptions& options) {
  const auto& offload = run.optimizer.config().offload;
  const char* beside = options.weights_only       ? "weights_only (--no-save-optim)"
                       : options.save_16bit_model ? "save_16bit_model (--save-16bit-model)"
                       : offload.optimizer_on_disk() || offload.params_on_disk()
                           ? "state on disk (--offload-optimizer nvme)"
                           : nullptr;
  if (beside)
    throw CollectiveError(std::string("save_checkpoint: async (--async-save) does not go with ") +
                          beside + "; save without one of them. Nothing was written.");
}

bool can_share_files(const CheckpointedRun& run, const Value& metadata, int leader) {
  if (run.grid.dp->size() == 1) return false;
  size_t hash = 0;  // computing it may read client tensors from a file
  all_or_none(*run.grid.world,
              [&] { hash = std::hash<std::string>()(encode_pickle(metadata, crc_of)); });
  const std::vector<std::string> all =
      gather_strings(*run.grid.dp, std::to_string(hash) + " " + std::to_string(leader));
  return std::ranges::count(all, all[0]) == run.grid.dp->size();
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

}  // namespace anymesh
