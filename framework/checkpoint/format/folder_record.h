#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "framework/checkpoint/format/own_entries.h"

namespace anymesh {

// .anymesh.json in a folder that may hold a user's files too: those that our tools made there. A
// file is ours if it is listed and nobody has written to it since, by its size and time.
//
//   FolderRecord record(folder);               // under an OutputLock
//   record.expect_ours({"model.safetensors"}, "; give another folder");
//   record.publish(build, files);              // build/NAME -> folder/NAME
//   record.remove("pytorch_model-00002-of-00002.bin");
//   record.write();
class FolderRecord {
 public:
  explicit FolderRecord(std::filesystem::path folder);

  bool is_ours(const std::string& name) const { return ours_.contains(name); }
  // Throws with the first that is there and not ours.
  void expect_ours(const std::vector<std::string>& names, const std::string& remedy) const;
  void add(const std::vector<Manifest::File>& files);
  // The files are on record before the first has its name, so that a kill leaves none that is not.
  void publish(const std::filesystem::path& build, const std::vector<Manifest::File>& files);
  void remove(const std::string& name);
  void write() const;

 private:
  std::filesystem::path folder_;
  std::vector<Manifest::File> files_;
  std::set<std::string> ours_;
};

// For a folder that holds only files on its record.
IsOurs recorded_entries(const std::filesystem::path& folder);

}  // namespace anymesh
