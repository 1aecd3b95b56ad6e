#include "framework/format/torch_file/record_checksums.h"

#include <algorithm>
#include <map>
#include <optional>
#include <stdexcept>
#include <utility>

#include "framework/format/io/crc32.h"
#include "framework/util/errors.h"
#include "framework/util/parallel_for.h"

namespace anymesh {
namespace {

std::string name_of(const File& file, const ZipReader::Record& record) {
  return file.path().string() + ": record " + record.name;
}

}  // namespace

// A record's data. A read of the whole record is checked at once. A small record is read whole when
// it is read a second time, and kept. Without `checks`, the first partial read checks the whole
// record beforehand. With `checks`, the CRCs of the counted runs are kept, and adjacent runs are
// joined. The read that completes a record then checks it.
class RecordChecksums::Record : public ByteSource, public std::enable_shared_from_this<Record> {
 public:
  Record(std::shared_ptr<const File> file, std::shared_ptr<const ZipReader::Record> record,
         RecordChecksums* checks)
      : file_(std::move(file)), record_(std::move(record)), checks_(checks) {}

  uint64_t size() const override { return record_->size; }

  void read(uint64_t offset, std::span<std::byte> out) const override {
    if (out.size() > size() || offset > size() - out.size())
      check_range(offset, out.size(), name());
    if (size() <= kSmall && read_small(offset, out)) return;
    const bool whole = out.size() == size();
    if (!whole && !checks_) std::call_once(checked_, [this] { check(); });
    file_->read(record_->offset + offset, out);
    if (!record_->has_crc) return;
    const bool counts = whole || (checks_ && checks_->counts_);
    const uint32_t crc = counts ? crc32(out) : 0;
    if (whole) compare(crc);
    if (!checks_ || (!whole && (out.empty() || checks_->peeks_))) return;
    const std::lock_guard lock(mutex_);
    if (!known_) checks_->add(shared_from_this());
    known_ = true;
    if (whole) runs_.clear();
    if (counts) note(offset, {offset + out.size(), crc});
    if (const auto& [begin, run] = *runs_.begin(); counts && begin == 0 && run.end == size())
      compare(run.crc);
  }

  std::vector<FileRange> places(uint64_t offset, uint64_t count) const override {
    return {{file_->path(), record_->name, file_->begin() + record_->offset + offset, count, ""}};
  }

  void check() const {
    if (record_->has_crc) compare(crc_of(0, size()));
  }

  // Reads the gaps, then compares the CRC.
  void finish() const {
    const std::lock_guard lock(mutex_);
    if (!small_.empty()) return;  // it is checked
    compare(fold([this](uint64_t begin, uint64_t end) { return crc_of(begin, end); }));
  }

  // Counts the gaps as zeros. Returns none if the record is checked.
  std::optional<Part> part() const {
    const std::lock_guard lock(mutex_);
    if (!small_.empty()) return std::nullopt;
    Part part{shared_from_this(), name(), 0, size(), 0, record_->crc ^ crc_of_zeros(size())};
    for (const auto& [begin, run] : runs_) part.bytes += run.end - begin;
    const uint32_t read =
        fold([](uint64_t begin, uint64_t end) { return crc_of_zeros(end - begin); });
    if (part.bytes == size()) compare(read);
    part.read = read ^ crc_of_zeros(size());
    return part;
  }

 private:
  struct Run {
    uint64_t end;
    uint32_t crc;
  };

  static constexpr uint64_t kSmall = 8 << 10;

  // Returns false, without reading, for the first part of a record.
  bool read_small(uint64_t offset, std::span<std::byte> out) const {
    const std::lock_guard lock(mutex_);
    if (out.size() < size() && !std::exchange(was_read_, true)) return false;
    if (small_.empty()) {
      std::vector<std::byte> bytes(size());
      file_->read(record_->offset, bytes);
      if (record_->has_crc) compare(crc32(bytes));
      small_ = std::move(bytes);
    }
    std::ranges::copy(std::span(small_).subspan(offset, out.size()), out.begin());
    return true;
  }

  std::string name() const { return name_of(*file_, *record_); }
  uint32_t crc_of(uint64_t begin, uint64_t end) const {
    return file_->crc(record_->offset + begin, end - begin);
  }
  void compare(uint32_t crc) const { expect_crc(*file_, *record_, crc); }
  static uint32_t crc_of_zeros(uint64_t size) { return ~crc32_combine(~0U, 0, size); }

  // Returns the CRC of the whole record. gap(begin, end) is the CRC of the bytes between runs.
  template <typename Gap>
  uint32_t fold(Gap&& gap) const {
    uint32_t crc = 0;
    uint64_t at = 0;
    for (const auto& [begin, run] : runs_) {
      if (at < begin) crc = crc32_combine(crc, gap(at, begin), begin - at);
      crc = crc32_combine(crc, run.crc, run.end - begin);
      at = run.end;
    }
    return at < size() ? crc32_combine(crc, gap(at, size()), size() - at) : crc;
  }

  // Ignores a run that overlaps an earlier one: bytes count when they are first read.
  void note(uint64_t begin, Run run) const {
    auto next = runs_.lower_bound(begin);
    if (next != runs_.end() && next->first < run.end) return;
    if (next != runs_.end() && next->first == run.end) {
      run.crc = crc32_combine(run.crc, next->second.crc, next->second.end - next->first);
      run.end = next->second.end;
      next = runs_.erase(next);
    }
    if (next == runs_.begin() || std::prev(next)->second.end < begin) {
      runs_.emplace_hint(next, begin, run);
      return;
    }
    Run& last = std::prev(next)->second;
    if (last.end > begin) return;
    last.crc = crc32_combine(last.crc, run.crc, run.end - begin);
    last.end = run.end;
  }

  std::shared_ptr<const File> file_;
  std::shared_ptr<const ZipReader::Record> record_;
  RecordChecksums* checks_;  // or null
  mutable std::once_flag checked_;
  mutable std::mutex mutex_;
  mutable bool known_ = false;            // to checks_
  mutable std::map<uint64_t, Run> runs_;  // by begin
  mutable bool was_read_ = false;
  mutable std::vector<std::byte> small_;  // all bytes, once they passed their CRC
};

void RecordChecksums::add(std::shared_ptr<const Record> record) {
  const std::lock_guard lock(mutex_);
  records_.push_back(std::move(record));
}

void RecordChecksums::finish(int threads) {
  parallel_for(records_.size(), threads, [this](size_t i) { records_[i]->finish(); });
}

std::vector<RecordChecksums::Part> RecordChecksums::finish_own() const {
  std::vector<Part> parts;
  for (const auto& record : records_)
    if (auto part = record->part()) parts.push_back(*std::move(part));
  return parts;
}

void RecordChecksums::check(const Part& part) const { part.record->check(); }

std::string RecordChecksums::note_on_missing_crcs(const std::set<std::string>& files) {
  if (files.empty()) return "";
  return *files.begin() +
         (files.size() > 1 ? " (and " + std::to_string(files.size() - 1) + " more)" : "") +
         ": torch wrote no checksums (all CRCs are 0), so that damage in them would not be seen";
}

void expect_crc(const File& file, const ZipReader::Record& record, uint32_t crc) {
  if (crc == record.crc) return;
  throw DamagedFile(name_of(file, record) + " at offset " +
                    std::to_string(file.begin() + record.offset) +
                    " is damaged (its CRC-32 does not match)");
}

BytesPtr open_record(std::shared_ptr<const File> file,
                     std::shared_ptr<const ZipReader::Record> record, RecordChecksums* checks) {
  const bool has_crc = record->has_crc;
  const std::string path = file->path().string();
  auto bytes =
      std::make_shared<RecordChecksums::Record>(std::move(file), std::move(record), checks);
  if (!checks || has_crc) return bytes;
  const std::lock_guard lock(checks->mutex_);
  checks->without_crcs_.insert(path);
  return bytes;
}

}  // namespace anymesh
