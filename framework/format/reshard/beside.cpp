#include "framework/format/reshard/beside.h"

#include <algorithm>
#include <regex>

#include "framework/format/folder/output_folder.h"
#include "framework/format/io/file_io.h"
#include "framework/format/layout/names.h"
#include "framework/util/errors.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

constexpr const char* kScripts[] = {"zero_to_fp32.py", "zero_to_torch.py"};
constexpr const char* kTrainerState = "trainer_state.json";      // HF Trainer
constexpr const char* kAccelerateState = "random_states_0.pkl";  // Accelerate
constexpr const char* kAccelerateScheduler = "scheduler.bin";

// Names a rank's file of random numbers. HF Trainer leaves the rank out where there is one alone.
std::string trainers(int rank, int ranks) {
  return ranks == 1 ? "rng_state.pth" : "rng_state_" + std::to_string(rank) + ".pth";
}
std::string accelerates(int rank, int) { return "random_states_" + std::to_string(rank) + ".pkl"; }

bool is_random_state(const std::string& name) {
  static const std::regex names(R"(rng_state(_\d+)?\.pth|random_states_\d+\.pkl)");
  return std::regex_match(name, names);
}

// Not a link, which might lead to anybody's file.
bool is_file_itself(const fs::path& path) { return fs::is_regular_file(fs::symlink_status(path)); }

void add_random_states(const fs::path& folder, std::string (*name_of)(int rank, int ranks),
                       int old_ranks, int ranks, std::vector<BesideFile>& files,
                       std::vector<std::string>& notes) {
  for (int rank = 0; rank < ranks; ++rank) {
    const std::string from = name_of(rank, old_ranks), to = name_of(rank, ranks);
    if (rank < old_ranks && is_file_itself(folder / from)) {
      files.push_back({from, to});
    } else {
      notes.push_back(to + ": " +
                      (rank < old_ranks ? from + " is missing"
                                        : "no rank of the source has its random numbers") +
                      ", so rank " + std::to_string(rank) + " starts from its seed");
      break;
    }
  }
}

bool belongs(const std::string& name) {
  return !name.starts_with(kLatestFile) && !name.starts_with(".") &&
         !name.ends_with(kTemporarySuffix) && !is_random_state(name);
}

std::vector<std::string> targets(const std::vector<BesideFile>& files) {
  std::vector<std::string> names;
  for (const BesideFile& file : files) names.push_back(file.to);
  names.emplace_back(kLatestFile);
  return names;
}

}  // namespace

std::vector<BesideFile> files_beside(const fs::path& tag, int old_ranks, int ranks,
                                     std::vector<std::string>& notes) {
  const fs::path folder = tag.parent_path();
  const bool trainer = fs::exists(folder / kTrainerState),
             accelerate = fs::exists(folder / kAccelerateState);
  std::vector<BesideFile> files;
  if (!trainer && !accelerate) {
    for (const std::string script : kScripts)
      if (is_file_itself(folder / script)) files.push_back({script, script});
    return files;
  }
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    if (!belongs(name)) continue;
    if (is_file_itself(entry.path())) files.push_back({name, name});
    if (entry.is_symlink()) notes.push_back(name + ": is a link, and is not copied");
  }
  std::ranges::sort(files, {}, &BesideFile::from);
  add_random_states(folder, trainer ? trainers : accelerates, old_ranks, ranks, files, notes);
  if (accelerate && ranks != old_ranks && fs::exists(folder / kAccelerateScheduler))
    notes.push_back(std::string(kAccelerateScheduler) +
                    ": Accelerate advances a scheduler by its number of processes at each step, so "
                    "its position is that of " +
                    std::to_string(old_ranks) + " processes");
  return files;
}

void check_beside(const FolderRecord& record, const std::vector<BesideFile>& files) {
  record.expect_ours(targets(files), "; give another " + std::string(kOutputFlag));
}

std::vector<std::string> write_beside(const fs::path& tag, const fs::path& output,
                                      const std::vector<BesideFile>& files, FolderRecord& record) {
  check_beside(record, files);
  for (const BesideFile& file : files) record.copy_in(tag.parent_path() / file.from, file.to);
  record.write_in(std::string(kLatestFile), output.filename().string());
  record.write();
  return targets(files);
}

}  // namespace anymesh
