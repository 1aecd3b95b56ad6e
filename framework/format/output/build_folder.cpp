#include "framework/format/output/build_folder.h"

#include <stdexcept>
#include <utility>

#include "framework/format/io/file_io.h"
#include "framework/format/layout/names.h"
#include "framework/util/errors.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

IsOurs build_entries(const fs::path& folder, const IsOurs& otherwise) {
  IsOurs listed = otherwise ? otherwise : [](const fs::path&, bool) { return false; };
  if (fs::is_directory(fs::symlink_status(folder)))
    if (const auto journal = read_manifest(folder, kJournalFile)) listed = entries_of(*journal);
  return [listed](const fs::path& name, bool is_folder) {
    const fs::path file = made_beside(name).value_or(name);  // write_text_atomically() makes these
    return file == kJournalFile || listed(file, is_folder);
  };
}

}  // namespace

void check_build_folder(const fs::path& folder, const IsOurs& otherwise) {
  const std::string foreign = first_foreign_entry(folder, build_entries(folder, otherwise));
  if (foreign.empty()) return;
  throw UserError(foreign + " is not of a run of ours that was killed, but in " + folder.string() +
                  " the output is built; move it away");
}

std::optional<OutputLock> claim_build(const fs::path& output, const std::string& what,
                                      IsOurs (*otherwise)(const fs::path& folder)) {
  std::optional<OutputLock> lock;
  if (fs::is_directory(output.parent_path())) lock.emplace(OutputLock::beside(output, what));
  const fs::path folder = temporary_of(output);
  check_build_folder(folder, otherwise(folder));
  return lock;
}

OutputLock lock_build(std::optional<OutputLock> claimed, const fs::path& output,
                      const std::string& what) {
  if (claimed) return std::move(*claimed);
  fs::create_directories(output.parent_path());
  return OutputLock::beside(output, what);
}

void prepare_build_folder(const fs::path& folder, const BuildPlan& plan, const IsOurs& otherwise) {
  check_build_folder(folder, otherwise);
  const std::string left = remove_ours(folder, build_entries(folder, otherwise), plan.files);
  if (!left.empty()) throw UserError("cannot empty " + folder.string() + ": " + left);
  fs::create_directory(folder);
  Manifest journal{.tag = folder.stem()};
  for (const auto& names : {plan.files, plan.others})
    for (const fs::path& name : names) journal.files.push_back({.name = name});
  write_text_atomically(folder / kJournalFile, journal.to_json());
  for (const fs::path& name : plan.files) fs::create_directories((folder / name).parent_path());
}

void finish_build_folder(const fs::path& folder) {
  fs::remove(folder / kJournalFile);
  sync_file_system(folder);
}

void remove_build_folder(const fs::path& folder) {
  remove_ours(folder, build_entries(folder, nullptr));
}

}  // namespace anymesh
