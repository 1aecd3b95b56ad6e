#include "framework/format/folder/output_folder.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "framework/format/io/file_io.h"
#include "framework/format/layout/names.h"
#include "framework/format/torch_file/record_checksums.h"
#include "framework/format/torch_file/zip.h"
#include "framework/util/errors.h"
#include "framework/util/format.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kSmallFile = 1 << 20;

// A file that is opened when it is first read, and given out once all its records have passed their
// CRCs.
class CheckedFile : public ByteSource {
 public:
  explicit CheckedFile(fs::path path) : path_(std::move(path)), size_(fs::file_size(path_)) {}
  uint64_t size() const override { return size_; }
  void read(uint64_t offset, std::span<std::byte> out) const override {
    std::call_once(checked_, [this] {
      const ZipReader zip(path_);
      for (const auto& record : zip.records()) zip.check(record);
      file_ = zip.file();
    });
    file_->read(offset, out);
  }

 private:
  fs::path path_;
  uint64_t size_;
  mutable std::once_flag checked_;
  mutable std::shared_ptr<const File> file_;
};

}  // namespace

OutputFolder::OutputFolder(fs::path output, std::string what, const FolderKind& kind, bool dry_run)
    : output_(std::move(output)),
      build_(temporary_of(output_)),
      old_(replaced_of(output_)),
      what_(std::move(what)),
      kind_(kind),
      dry_run_(dry_run) {
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

void OutputFolder::expect(const std::vector<StreamedFile>& files, StreamReport& report,
                          uint64_t more) const {
  uint64_t there = 0;
  for (const StreamedFile& file : files) {
    report.bytes += file.layout.size;
    if (fs::is_regular_file(file.path)) there += fs::file_size(file.path);
  }
  report.files = static_cast<int64_t>(files.size());
  report.free_bytes = fs::space(existing_folder(build_)).available;
  const uint64_t all = report.bytes + more, needed = all - std::min(all, there);
  if (report.free_bytes >= needed) return;
  report.refusal = build_.string() + ": " + size_text(static_cast<double>(needed)) +
                   " are needed, " + size_text(static_cast<double>(report.free_bytes)) +
                   " are free";
  if (!dry_run_) throw UserError(report.refusal);
}

WriteResult OutputFolder::stream(const std::vector<StreamedFile>& files, int threads,
                                 RecordChecksums& checks, const ProgressCallback& progress,
                                 std::set<fs::path> later) {
  BuildPlan plan{.others = std::move(later)};
  plan.others.insert(kManifestFile);
  for (const StreamedFile& file : files) {
    const fs::path name = file.path.lexically_relative(build_);
    plan.files.insert(name);
    if (const auto second = second_name(name)) plan.others.insert(*second);
  }
  prepare(plan);
  WriteResult result;
  try {
    result = write_files(files, threads, progress);
  } catch (const DamagedFile&) {
    checks.finish(threads);
    throw;
  }
  checks.finish(threads);
  for (size_t i = 0; i < files.size(); ++i)
    streamed_.push_back({files[i].path.lexically_relative(build_), files[i].layout.size,
                         result.crcs[i], host_name()});
  return result;
}

std::optional<std::string> OutputFolder::second_name(const std::string& file) const {
  return kind_.second_name ? kind_.second_name(file) : std::nullopt;
}

void OutputFolder::write_manifest(int64_t iteration) const {
  const Manifest manifest{output_.filename(), iteration, streamed_};
  write_text_atomically(build_ / kManifestFile, manifest.to_json());
  for (const Manifest::File& file : streamed_) {
    const auto second = second_name(file.name);
    if (!second) continue;
    fs::remove(build_ / *second);
    std::error_code no_links;
    fs::create_hard_link(build_ / file.name, build_ / *second, no_links);
    if (no_links) fs::copy_file(build_ / file.name, build_ / *second);
  }
}

void OutputFolder::publish(int64_t iteration) {
  if (!streamed_.empty()) write_manifest(iteration);
  fs::remove(build_ / kJournalFile);
  sync_file_system(build_);
  std::string foreign;
  const IsOurs present = present_entries(output_, ours_, foreign);
  refuse(foreign);
  const fs::path replaced = publish_folder(build_, output_);
  if (!kind_.pointer.empty())
    write_text_atomically(output_.parent_path() / kind_.pointer, output_.filename().string());
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

StreamedFile streamed_copy(const fs::path& from, const fs::path& to, RecordChecksums& checks) {
  FileLayout layout;
  if (fs::file_size(from) <= kSmallFile) {
    layout.add(std::make_shared<CheckedFile>(from));
    return {to, std::move(layout)};
  }
  const ZipReader zip(from);
  std::vector<const ZipReader::Record*> records;
  for (const ZipReader::Record& record : zip.records()) records.push_back(&record);
  std::ranges::sort(records, {}, &ZipReader::Record::offset);
  uint64_t at = 0;
  const auto add_to = [&](uint64_t end) {  // the bytes between records
    if (at < end) layout.add(std::make_shared<SubRange>(zip.file(), at, end - at));
  };
  for (const ZipReader::Record* record : records) {
    add_to(record->offset);
    if (record->size > 0) layout.add(zip.open(*record, &checks));
    at = record->offset + record->size;
  }
  add_to(zip.file()->size());
  return {to, std::move(layout)};
}

fs::path without_trailing_slash(const fs::path& path) {
  const fs::path normal = fs::absolute(path).lexically_normal();
  return normal.has_filename() ? normal : normal.parent_path();
}

bool is_inside(const fs::path& inner, const fs::path& outer) {
  std::error_code absent;
  fs::path up = fs::weakly_canonical(inner);
  while (!fs::equivalent(up, outer, absent) && up != up.parent_path()) up = up.parent_path();
  return fs::equivalent(up, outer, absent);
}

void expect_apart(const fs::path& input, const fs::path& output) {
  if (is_inside(output, input) || is_inside(input, output))
    throw UserError(std::string(kOutputFlag) + " " + output.string() + " and --input_folder " +
                    input.string() + " must not be inside each other");
}

}  // namespace anymesh
