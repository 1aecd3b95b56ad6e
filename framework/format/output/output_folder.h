#pragma once

#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "framework/format/output/output_lock.h"
#include "framework/format/output/own_entries.h"

namespace anymesh {

// The entries of a folder that is being built, relative to it. The next run over a killed one's
// remains keeps `files`, which write_files() then compares and completes.
struct BuildPlan {
  std::set<std::filesystem::path> files, others;
};

// A kind of folder, which may be replaced as a whole if it has nothing else in it.
struct FolderKind {
  const char* name;  // "a universal checkpoint", for messages
  IsOurs (*entries)(const std::filesystem::path& folder);
};

// An output folder, which appears whole or not at all, and which one process at a time writes:
//
//   OutputFolder out(output, "--output_folder", kUniversal);  // takes the lock, makes no folder
//   out.prepare({.files = {"zero/w/fp32.pt"}, .others = {"manifest.json"}});
//   ...                                                       // writes to out.folder()
//   out.publish(kLatestUniversalFile);
//
//   .OUTPUT.lock     held while the object lives
//   OUTPUT.tmp       the new folder until it is published. Its building.json lists the files before
//                    the first exists. Then it is the folder replaced, until that is removed
//   OUTPUT.old.tmp   the same, where the file system cannot swap two folders
//
// A kill at any moment leaves a whole OUTPUT, the old or the new one, and only files in the other
// two that are known to be ours. The next run removes or completes these. All members throw a
// UserError, before they touch anything, for a foreign entry in one of the three. `what` names the
// flag in messages.
class OutputFolder {
 public:
  // With `dry_run`, only looks.
  OutputFolder(std::filesystem::path output, std::string what, const FolderKind& kind,
               bool dry_run = false);

  const std::filesystem::path& folder() const { return build_; }  // OUTPUT.tmp
  void prepare(const BuildPlan& plan);
  // Syncs the folder and gives it its name. Then writes that name to the file `pointer` beside it,
  // if there is one, and removes the folder that it replaced.
  void publish(std::string_view pointer = "");

 private:
  void check() const;
  void refuse(const std::string& foreign) const;

  std::filesystem::path output_, build_, old_;
  std::string what_;
  FolderKind kind_;
  std::optional<OutputLock> lock_;
  IsOurs ours_;  // in OUTPUT
};

// The same for a build folder whose files get their names one by one: checks it, prepares it, and
// removes it with what is left in it. Its building.json lists our entries. Without that, they are
// those that `otherwise` accepts.
void check_build_folder(const std::filesystem::path& folder, const IsOurs& otherwise = nullptr);
void prepare_build_folder(const std::filesystem::path& folder, const BuildPlan& plan,
                          const IsOurs& otherwise = nullptr);
void remove_build_folder(const std::filesystem::path& folder);

}  // namespace anymesh
