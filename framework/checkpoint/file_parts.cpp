#include "framework/checkpoint/file_parts.h"

#include <algorithm>

#include "framework/checkpoint/format/crc32.h"
#include "framework/checkpoint/format/pickle.h"
#include "framework/checkpoint/format/torch_file.h"
#include "framework/checkpoint/rank_files.h"
#include "framework/comm/agreement.h"

namespace anymesh {
namespace {

std::string crc_of(const TensorRecord& tensor) {
  std::vector<std::byte> bytes(tensor.bytes ? tensor.bytes->size() : 0);
  if (tensor.bytes) tensor.bytes->read(0, bytes);
  return std::to_string(crc32(bytes));
}

}  // namespace

bool can_share_files(const CheckpointedRun& run, const Value& metadata, int leader) {
  if (run.grid.dp->size() == 1) return false;
  size_t hash = 0;  // reads the client's tensors, perhaps from a file
  all_or_none(*run.grid.world,
              [&] { hash = std::hash<std::string>()(encode_pickle(metadata, crc_of)); });
  const std::vector<std::string> all =
      gather_strings(*run.grid.dp, std::to_string(hash) + " " + std::to_string(leader));
  return std::ranges::count(all, all[0]) == run.grid.dp->size();
}

std::optional<FilePart> part_of(const CheckpointedRun& run, const std::string& name,
                                const Value& value, int owner, bool shared) {
  if (owner == kAlone) return FilePart();
  const int dp = run.grid.dp->size(), behind_owner = (run.grid.dp->rank() - owner + dp) % dp,
            parts = shared ? parts_worth(torch_file_size(name, value), dp) : 1;
  if (behind_owner >= parts) return std::nullopt;
  return FilePart{parts - 1 - behind_owner, parts};
}

Value hold_part(Snapshot& snapshot, const std::string& name, const Value& value, FilePart part) {
  return snapshot.hold(value, SharedFile(streamed_torch_file(name, value), part).sources());
}

}  // namespace anymesh
