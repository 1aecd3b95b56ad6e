#include "framework/format/sharded/tag_files.h"

#include <algorithm>

#include "framework/format/io/file_io.h"
#include "framework/format/torch_file/torch_file.h"
#include "framework/util/errors.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;
using Kind = CheckpointFileName::Kind;

constexpr int64_t kMostListed = 20;  // missing or surplus files in a message

}  // namespace

std::map<Kind, RankFiles> find_files(const fs::path& folder) {
  if (!fs::is_directory(folder)) {
    throw UserError("the input folder " + folder.string() + " does not exist" +
                    list_parent(folder));
  }
  std::map<Kind, RankFiles> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const fs::path file = entry.path().filename();
    const auto name = parse_checkpoint_file_name(file.string());
    if (!name || name->kind == Kind::kExpert) continue;
    const Ranks ranks = name->kind == Kind::kLayer         ? Ranks(name->layer, name->tp_rank)
                        : name->kind == Kind::kExpertOptim ? Ranks(name->ep_rank, name->mp_rank)
                                                           : Ranks(name->dp_rank, name->mp_rank);
    const auto [known, is_new] = files[name->kind].try_emplace(ranks, entry.path());
    if (!is_new) {
      throw DamagedFile(folder.string() + ": two files are of the same rank, " +
                        known->second.filename().string() + " and " + file.string());
    }
  }
  if (!files.contains(Kind::kModelStates) && !files.contains(Kind::kZero3ModelStates)) {
    throw DamagedFile(folder.string() +
                      " is not a tag folder of a checkpoint: it has no *_model_states.pt. It " +
                      "holds: " + list_folder(folder));
  }
  return files;
}

std::vector<std::pair<int, fs::path>> find_expert_files(const fs::path& folder) {
  std::vector<std::pair<int, fs::path>> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const auto name = parse_checkpoint_file_name(entry.path().filename().string());
    if (name && name->kind == Kind::kExpert) files.emplace_back(name->mp_rank, entry.path());
  }
  std::ranges::sort(files);
  return files;
}

int64_t next_rank(const RankFiles& files, int Ranks::*rank) {
  int64_t highest = -1;
  for (const auto& [ranks, file] : files) highest = std::max<int64_t>(highest, ranks.*rank);
  return highest + 1;
}

// File names may claim any rank, so the search for missing files stops when the message's list is
// full.
void check_complete(const fs::path& folder, const RankFiles& files, int64_t dp_size,
                    int64_t mp_size) {
  const int64_t missing = dp_size * mp_size - static_cast<int64_t>(files.size());
  if (missing == 0) return;
  const auto like = *parse_checkpoint_file_name(files.begin()->second.filename().string());
  std::string names;
  int64_t listed = 0;
  for (int64_t i = 0; listed < std::min(missing, kMostListed); ++i) {
    const int dp = like.dp_rank < 0 ? -1 : static_cast<int>(i / mp_size),
              mp = static_cast<int>(i % mp_size);
    if (files.contains({dp, mp})) continue;
    names += "\n  " + (like.kind == Kind::kOptimStates ? optim_states_file(dp, mp, like.bf16)
                       : dp < 0                        ? model_states_file(mp)
                                                       : zero3_model_states_file(dp, mp));
    ++listed;
  }
  if (listed < missing) names += "\n  ... and " + std::to_string(missing - listed) + " more";
  throw DamagedFile(folder.string() + ": files are missing:" + names +
                    "\nIt holds: " + list_folder(folder));
}

void refuse_left_over(const fs::path& folder, const RankFiles& files, int Ranks::*rank,
                      int64_t saved, const std::string& said_by) {
  std::string names;
  int64_t count = 0;
  for (const auto& [ranks, path] : files) {
    if (ranks.*rank < saved) continue;
    if (++count <= kMostListed) names += "\n  " + path.filename().string();
  }
  if (count == 0) return;
  if (count > kMostListed) names += "\n  ... and " + std::to_string(count - kMostListed) + " more";
  throw DamagedFile(folder.string() + ": has files of " + std::to_string(next_rank(files, rank)) +
                    " ranks, but " + said_by + " says " + std::to_string(saved) +
                    ": these are left over from an earlier save under this tag; remove "
                    "them:" +
                    names);
}

int64_t dp_size_of(const RankFiles& models) {
  return std::max<int64_t>(1, next_rank(models, &Ranks::first));
}

std::vector<fs::path> paths_of(const RankFiles& files) {
  std::vector<fs::path> paths;
  for (const auto& [ranks, path] : files) paths.push_back(path);
  return paths;
}

void drop_sequence_ranks(RankFiles& files, const fs::path& model_file) {
  RankFiles renumbered;
  for (const auto& [ranks, path] : files)
    if (!renumbered.emplace(Ranks(ranks.first, 0), path).second) return;
  if (next_rank(files, &Ranks::second) < 2) return;
  const Value ranks = read_torch_file(model_file).find(keys::kMpWorldSize);
  if (ranks && ranks.as_int() == 1) files = std::move(renumbered);
}

}  // namespace anymesh
