#include "framework/format/folder/folder_record.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>

#include "framework/format/io/byte_source.h"
#include "framework/format/io/file_io.h"
#include "framework/format/layout/names.h"
#include "framework/util/errors.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

bool lists(const std::vector<Manifest::File>& files, const std::string& name) {
  return std::ranges::find(files, name, &Manifest::File::name) != files.end();
}

}  // namespace

FolderRecord::FolderRecord(fs::path folder, const char* what) : folder_(std::move(folder)) {
  if (what) {
    fs::create_directories(folder_);
    lock_.emplace(OutputLock::inside(folder_, what));
  }
  if (!fs::is_directory(folder_)) return;
  if (auto record = read_manifest(folder_, kRecordFile)) files_ = std::move(record->files);
}

bool FolderRecord::is_ours(const std::string& name) const {
  const fs::path path = folder_ / name;
  if (!lists(files_, name) || !fs::is_regular_file(fs::symlink_status(path))) return false;
  const File file(path);
  std::optional<uint32_t> crc;  // read only if the size is right
  return std::ranges::any_of(files_, [&](const Manifest::File& ours) {
    if (ours.name != name || ours.bytes != file.size()) return false;
    if (!crc) crc = file.crc(0, file.size());
    return ours.crc == *crc;
  });
}

void FolderRecord::expect_ours(const std::vector<std::string>& names,
                               const std::string& remedy) const {
  for (const std::string& name : names)
    if (fs::exists(fs::symlink_status(folder_ / name)) && !is_ours(name))
      throw UserError((folder_ / name).string() + " is of no earlier run of ours, which " +
                      std::string(kRecordFile) +
                      " would list, or was changed since; it would be replaced" + remedy);
}

// Lists the files, and takes away what killed runs were making of them.
void FolderRecord::store(const std::vector<Manifest::File>& files) {
  remove_unfinished(
      folder_, [this](const fs::path& name) { return name == kRecordFile || lists(files_, name); });
  files_ = files;
  if (files.empty())
    fs::remove(folder_ / kRecordFile);
  else
    write_text_atomically(folder_ / kRecordFile, Manifest{.files = files}.to_json());
}

void FolderRecord::announce(const std::vector<Manifest::File>& files) {
  std::vector<Manifest::File> all = files_;
  all.insert(all.end(), files.begin(), files.end());
  store(all);
}

void FolderRecord::replace(const std::vector<std::string>& earlier, const fs::path& build,
                           const std::vector<Manifest::File>& files) {
  const auto remove = [&](const auto& is_such) {
    for (const std::string& name : earlier) {
      if (!is_such(name)) continue;
      fs::remove(folder_ / name);
      std::erase_if(files_, [&](const Manifest::File& file) { return file.name == name; });
    }
  };
  remove([](const std::string& name) { return name.ends_with(kIndexSuffix); });
  announce(files);
  for (const Manifest::File& file : files) rename_durably(build / file.name, folder_ / file.name);
  remove([&](const std::string& name) { return !lists(files, name); });
}

void FolderRecord::copy_in(const fs::path& file, const std::string& name) {
  const File source(file);
  announce({{name, source.size(), source.crc(0, source.size()), host_name()}});
  NewFile made(folder_ / name);
  fs::copy_file(file, made.path(), fs::copy_options::overwrite_existing);
  made.publish();
}

void FolderRecord::write_in(const std::string& name, std::string_view text) {
  announce({file_of_text(name, text)});
  write_text_atomically(folder_ / name, text);
}

void FolderRecord::add(const std::vector<Manifest::File>& files) {
  files_.insert(files_.end(), files.begin(), files.end());
}

void FolderRecord::write() {
  std::map<std::string, Manifest::File> last;
  for (const Manifest::File& file : files_)
    if (fs::exists(folder_ / file.name)) last[file.name] = file;
  std::vector<Manifest::File> files;
  for (const auto& [name, file] : last) files.push_back(file);
  store(files);
}

IsOurs recorded_entries(const fs::path& folder) {
  struct Known {
    FolderRecord record;
    std::map<fs::path, std::pair<fs::file_time_type, bool>> files;  // read once
  };
  const auto known = std::make_shared<Known>(Known{FolderRecord(folder), {}});
  return [known, folder](const fs::path& name, bool is_folder) {
    if (is_folder || name == kRecordFile) return !is_folder;
    std::error_code absent;
    const fs::file_time_type time = fs::last_write_time(folder / name, absent);
    auto& [read_at, is_ours] = known->files[name];
    if (read_at != time) is_ours = known->record.is_ours(name);
    read_at = time;
    return is_ours;
  };
}

}  // namespace anymesh
