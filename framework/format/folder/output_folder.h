#pragma once

#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "framework/format/folder/output_lock.h"
#include "framework/format/folder/own_entries.h"
#include "framework/format/io/write_files.h"

namespace anymesh {

class RecordChecksums;

// The entries of a folder that is being built, relative to it. The next run over a killed one's
// remains keeps `files`, which write_files() then compares and completes.
struct BuildPlan {
  std::set<std::filesystem::path> files, others;
};

// A report on the checkpoint that a tool streams.
struct StreamReport {
  int64_t files = 0;
  uint64_t bytes = 0;       // of all files
  uint64_t kept = 0;        // of these, bytes reused from an interrupted run
  uint64_t free_bytes = 0;  // on the output's file system, before the run
  std::string refusal;      // dry run: why the output does not fit
  double seconds = 0;       // taken; for a dry run of ds_to_universal that fits, the expected time
};

// A kind of folder, which may be replaced as a whole if it has nothing else in it.
struct FolderKind {
  const char* name;  // "a universal checkpoint", for messages
  IsOurs (*entries)(const std::filesystem::path& folder);
  std::string_view pointer = {};  // a file beside the folder that gets its name
  // Returns under which second name a file is there too.
  std::optional<std::string> (*second_name)(const std::string& file) = nullptr;
};

// An output folder, which appears whole or not at all, and which one process at a time writes:
//
//   OutputFolder out(output, "--output_folder", kUniversal);  // takes the lock, makes no folder
//   out.expect(files, report);                                // do they fit on the disk?
//   out.stream(files, threads, checks, progress);             // writes them to out.folder()
//   out.publish(iteration);                                   // with a manifest of these files
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

  // Fills in the fields that are known before anything is written. `more` bytes go beside the
  // folder. Files left by an interrupted run already have their space. Throws a UserError if there
  // is not enough, unless this is a dry run.
  void expect(const std::vector<StreamedFile>& files, StreamReport& report,
              uint64_t more = 0) const;
  // Prepares the folder for `files`, and for `later` ones. Writes the first, and finishes the
  // checks of the records that they are read from. If replicas differ between ranks, the cause may
  // be a damaged file; the error then names the damage.
  WriteResult stream(const std::vector<StreamedFile>& files, int threads, RecordChecksums& checks,
                     const ProgressCallback& progress, std::set<std::filesystem::path> later = {});
  // For files that the caller writes.
  void prepare(const BuildPlan& plan);

  // Lists the streamed files in a manifest, if there are any, and gives them their second names.
  // Syncs the folder and gives it its name. Then writes that name to the kind's pointer file, if it
  // has one, and removes the folder that it replaced.
  void publish(int64_t iteration = 0);

 private:
  void check() const;
  void refuse(const std::string& foreign) const;
  std::optional<std::string> second_name(const std::string& file) const;
  void write_manifest(int64_t iteration) const;

  std::filesystem::path output_, build_, old_;
  std::string what_;
  FolderKind kind_;
  bool dry_run_;
  std::optional<OutputLock> lock_;
  IsOurs ours_;  // in OUTPUT
  std::vector<Manifest::File> streamed_;
};

// The same for a build folder whose files get their names one by one: checks it, prepares it, and
// removes it with what is left in it. Its building.json lists our entries. Without that, they are
// those that `otherwise` accepts.
void check_build_folder(const std::filesystem::path& folder,
                        const IsOurs& otherwise = nothing_is_ours);
void prepare_build_folder(const std::filesystem::path& folder, const BuildPlan& plan,
                          const IsOurs& otherwise = nothing_is_ours);
void remove_build_folder(const std::filesystem::path& folder);

// Returns a copy of a torch file, byte by byte, to be streamed. Each record is checked when read.
StreamedFile streamed_copy(const std::filesystem::path& from, const std::filesystem::path& to,
                           RecordChecksums& checks);

// Returns the absolute path, without a final slash.
std::filesystem::path without_trailing_slash(const std::filesystem::path& path);
// Whether the paths, which may lead through links, mean a folder and something in it, or the same.
bool is_inside(const std::filesystem::path& inner, const std::filesystem::path& outer);
// Throws if --input_folder and --output_folder are inside each other.
void expect_apart(const std::filesystem::path& input, const std::filesystem::path& output);
inline constexpr const char* kOutputFlag = "--output_folder";  // for messages

}  // namespace anymesh
