#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "framework/format/output/own_entries.h"

namespace anymesh {

// The record (.anymesh.json) of the files that our tools made in a folder, which may also hold a
// user's files. A file is ours if the record lists it and its size and time show no later write.
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
  // Throws, naming the first existing file that is not ours.
  void expect_ours(const std::vector<std::string>& names, const std::string& remedy) const;
  void add(const std::vector<Manifest::File>& files);
  // Records the files before it renames the first, so that a kill leaves no unrecorded file.
  void publish(const std::filesystem::path& build, const std::vector<Manifest::File>& files);
  void remove(const std::string& name);
  void write() const;

 private:
  std::filesystem::path folder_;
  std::vector<Manifest::File> files_;
  std::set<std::string> ours_;
};

// Accepts the record and the files it lists. For a folder that should hold nothing else.
IsOurs recorded_entries(const std::filesystem::path& folder);

}  // namespace anymesh
