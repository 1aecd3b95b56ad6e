#include "framework/format/output/folder_record.h"

#include <algorithm>
#include <memory>
#include <stdexcept>

#include "framework/format/io/file_io.h"
#include "framework/format/layout/names.h"
#include "framework/util/errors.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

}  // namespace

FolderRecord::FolderRecord(fs::path folder) : folder_(std::move(folder)) {
  if (!fs::is_directory(folder_)) return;
  const auto record = read_manifest(folder_, kRecordFile);
  if (!record) return;
  const auto written = fs::last_write_time(folder_ / kRecordFile);
  for (const Manifest::File& file : record->files) {
    const fs::path path = folder_ / file.name;
    if (ours_.contains(file.name) || !fs::is_regular_file(fs::symlink_status(path)) ||
        fs::file_size(path) != file.bytes || fs::last_write_time(path) > written)
      continue;
    files_.push_back(file);
    ours_.insert(file.name);
  }
}

void FolderRecord::expect_ours(const std::vector<std::string>& names,
                               const std::string& remedy) const {
  for (const std::string& name : names)
    if (!is_ours(name) && fs::exists(fs::symlink_status(folder_ / name)))
      throw UserError((folder_ / name).string() + " is of no earlier run of ours, which " +
                      std::string(kRecordFile) +
                      " would list, or was changed since; it would be replaced" + remedy);
}

void FolderRecord::add(const std::vector<Manifest::File>& files) {
  for (const Manifest::File& file : files) {
    files_.push_back(file);
    ours_.insert(file.name);
  }
}

void FolderRecord::publish(const fs::path& build, const std::vector<Manifest::File>& files) {
  add(files);
  write();
  for (const Manifest::File& file : files) rename_durably(build / file.name, folder_ / file.name);
}

void FolderRecord::remove(const std::string& name) {
  fs::remove(folder_ / name);
  std::erase_if(files_, [&](const Manifest::File& file) { return file.name == name; });
  ours_.erase(name);
}

void FolderRecord::write() const {
  const Manifest record{.files = files_};
  write_text_atomically(folder_ / kRecordFile, record.to_json());
}

IsOurs recorded_entries(const fs::path& folder) {
  const auto record = std::make_shared<FolderRecord>(folder);
  return [record](const fs::path& name, bool is_folder) {
    return !is_folder && (name == kRecordFile || record->is_ours(name));
  };
}

}  // namespace anymesh
