#include "framework/format/output/output_folder.h"

#include <utility>

#include "framework/format/io/file_io.h"
#include "framework/format/layout/names.h"
#include "framework/util/errors.h"

namespace anymesh {

namespace fs = std::filesystem;

OutputFolder::OutputFolder(fs::path output, std::string what, const FolderKind& kind, bool dry_run)
    : output_(std::move(output)),
      build_(temporary_of(output_)),
      old_(replaced_of(output_)),
      what_(std::move(what)),
      kind_(kind) {
  // The lock comes first, so that the error names another process that builds here, not its files.
  if (!dry_run && fs::is_directory(output_.parent_path()))
    lock_.emplace(OutputLock::beside(output_, what_));
  ours_ = kind_.entries(output_);
  check();
}

void OutputFolder::check() const {
  refuse(first_foreign_entry(output_, ours_));
  refuse(first_foreign_entry(old_, entries_left(old_, kind_.entries(old_))));
  check_build_folder(build_, kind_.entries(build_));
}

void OutputFolder::refuse(const std::string& foreign) const {
  if (!foreign.empty())
    throw UserError(what_ + " " + output_.string() + " exists and is not " + kind_.name +
                    ", or not that alone, by " + foreign + "; it would be replaced. Give another");
}

void OutputFolder::prepare(const BuildPlan& plan) {
  if (!lock_) {
    fs::create_directories(output_.parent_path());
    lock_.emplace(OutputLock::beside(output_, what_));
  }
  if (restore_replaced(old_, kind_.entries(old_))) ours_ = kind_.entries(output_);
  check();
  remove_ours(old_, entries_left(old_, kind_.entries(old_)));
  prepare_build_folder(build_, plan, kind_.entries(build_));
}

void OutputFolder::publish(std::string_view pointer) {
  fs::remove(build_ / kJournalFile);
  sync_file_system(build_);
  std::string foreign;
  const IsOurs present = present_entries(output_, ours_, foreign);
  refuse(foreign);
  const fs::path replaced = publish_folder(build_, output_);
  if (!pointer.empty())
    write_text_atomically(output_.parent_path() / pointer, output_.filename().string());
  if (!replaced.empty()) remove_ours(replaced, present);
}

void check_build_folder(const fs::path& folder, const IsOurs& otherwise) {
  const std::string foreign = first_foreign_entry(folder, entries_left(folder, otherwise));
  if (!foreign.empty())
    throw UserError(foreign + " is not of a run of ours that was killed, but in " +
                    folder.string() + " the output is built; move it away");
}

void prepare_build_folder(const fs::path& folder, const BuildPlan& plan, const IsOurs& otherwise) {
  check_build_folder(folder, otherwise);
  fs::create_directory(folder);
  std::set<fs::path> kept = plan.files, names = plan.files;
  names.insert(plan.others.begin(), plan.others.end());
  write_journal(folder, std::move(names));
  kept.insert(kJournalFile);
  const std::string left = remove_ours(folder, entries_left(folder), kept);
  if (!left.empty()) throw UserError("cannot empty " + folder.string() + ": " + left);
  for (const fs::path& name : plan.files) fs::create_directories((folder / name).parent_path());
}

void remove_build_folder(const fs::path& folder) { remove_ours(folder, entries_left(folder)); }

}  // namespace anymesh
