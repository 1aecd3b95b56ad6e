#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "framework/format/folder/output_lock.h"
#include "framework/format/folder/own_entries.h"

namespace anymesh {

// The record (.anymesh.json) of the files that our tools made in a folder, which may also hold a
// user's files. A file is ours if the record lists its present size and checksum.
//
//   FolderRecord record(folder, "the output folder");  // makes and locks it
//   record.expect_ours({"model.safetensors"}, "; give another folder");
//   record.replace(earlier, build, files);             // build/NAME -> folder/NAME
//   record.write();
//
// Files are recorded before they get their names, beside what they replace, so that a kill leaves
// no unrecorded file. write() at the end drops what they replaced, and what is gone.
class FolderRecord {
 public:
  // With `what`, which names the flag, makes the folder and holds the sole right to write in it.
  // Without, only looks, or works in a folder that is being built.
  explicit FolderRecord(std::filesystem::path folder, const char* what = nullptr);

  bool is_ours(const std::string& name) const;  // reads the file
  // Throws, naming the first existing file that is not ours.
  void expect_ours(const std::vector<std::string>& names, const std::string& remedy) const;

  // Moves the files in, in place of `earlier` ones. The index of weights goes first and comes last,
  // because it would mix the files of two exports.
  void replace(const std::vector<std::string>& earlier, const std::filesystem::path& build,
               const std::vector<Manifest::File>& files);
  void copy_in(const std::filesystem::path& file, const std::string& name);
  void write_in(const std::string& name, std::string_view text);
  void add(const std::vector<Manifest::File>& files);  // of files that are there
  void write();

 private:
  void announce(const std::vector<Manifest::File>& files);
  void store(const std::vector<Manifest::File>& files);

  std::filesystem::path folder_;
  std::optional<OutputLock> lock_;
  std::vector<Manifest::File> files_;  // the last of a name is the newest
};

// Accepts the record and the files that are ours by it. For a folder that should hold nothing else.
IsOurs recorded_entries(const std::filesystem::path& folder);

}  // namespace anymesh
