#include <algorithm>
#include <map>
#include <mutex>
#include <stdexcept>
#include <unordered_set>

#include "framework/checkpoint/format/crc32.h"
#include "framework/checkpoint/format/zip.h"
#include "framework/checkpoint/format/zip_format.h"

namespace anymesh {
namespace {

constexpr uint64_t kMaxComment = 0xFFFF;

// A record's data. Notes the CRC of every range that is read, joins neighbours, and compares once
// nothing is missing.
class RecordBytes : public ByteSource {
 public:
  RecordBytes(std::shared_ptr<const File> file, ZipReader::Record record)
      : file_(std::move(file)), record_(std::move(record)) {}

  uint64_t size() const override { return record_.size; }

  void read(uint64_t offset, std::span<std::byte> out) const override {
    check_range(offset, out.size(), file_->path().string() + ": record " + record_.name);
    file_->read(record_.offset + offset, out);
    if (!out.empty()) note(offset, {out.size(), crc32(out)});
  }

 private:
  struct Range {
    uint64_t size;
    uint32_t crc;
  };

  void note(uint64_t begin, Range range) const {
    const std::lock_guard lock(mutex_);
    const auto next = seen_.lower_bound(begin);
    if (next != seen_.end() && next->first < begin + range.size)
      return;  // read again: the first time counted
    if (next != seen_.begin()) {
      const auto previous = std::prev(next);
      const uint64_t end = previous->first + previous->second.size;
      if (end > begin) return;
      if (end == begin) {
        begin = previous->first;
        range = {previous->second.size + range.size,
                 crc32_combine(previous->second.crc, range.crc, range.size)};
        seen_.erase(previous);
      }
    }
    if (next != seen_.end() && next->first == begin + range.size) {
      range = {range.size + next->second.size,
               crc32_combine(range.crc, next->second.crc, next->second.size)};
      seen_.erase(next);
    }
    seen_[begin] = range;
    if (range.size == record_.size && range.crc != record_.crc) {
      throw std::runtime_error(file_->path().string() + ": record " + record_.name + " at offset " +
                               std::to_string(record_.offset) +
                               " is damaged (its CRC-32 does not match)");
    }
  }

  std::shared_ptr<const File> file_;
  ZipReader::Record record_;
  mutable std::mutex mutex_;
  mutable std::map<uint64_t, Range> seen_;  // by offset, disjoint and not touching
};

std::vector<std::byte> read_range(const File& file, uint64_t offset, uint64_t size) {
  std::vector<std::byte> bytes(size);
  file.read(offset, bytes);
  return bytes;
}

}  // namespace

ZipReader::ZipReader(const std::filesystem::path& path) : file_(std::make_shared<File>(path)) {
  read_directory(find_directory());
}

void ZipReader::fail(const std::string& what) const {
  throw std::runtime_error(file_->path().string() + ": not a valid zip archive: " + what);
}

bool ZipReader::is_zip(const File& file) {
  if (file.size() < 4) return false;
  const uint32_t signature = get_field<uint32_t>(read_range(file, 0, 4), 0);
  return signature == kLocalHeader || signature == kEnd;
}

ZipReader::Directory ZipReader::find_directory() const {
  const uint64_t size = file_->size();
  if (size < kEndSize) fail("only " + std::to_string(size) + " bytes");
  const uint64_t tail_size = std::min(size, kEndSize + kMaxComment);
  const auto tail = read_range(*file_, size - tail_size, tail_size);
  uint64_t at = tail_size - kEndSize;
  while (get_field<uint32_t>(tail, at) != kEnd ||
         at + kEndSize + get_field<uint16_t>(tail, at + 20) != tail_size) {
    if (at-- == 0) fail("no end-of-directory record (is the file truncated?)");
  }
  const uint64_t end = size - tail_size + at;
  Directory directory{get_field<uint32_t>(tail, at + 16), get_field<uint32_t>(tail, at + 12),
                      get_field<uint16_t>(tail, at + 10)};
  uint64_t limit = end;
  if (end >= kZip64LocatorSize) {
    const auto locator = read_range(*file_, end - kZip64LocatorSize, kZip64LocatorSize);
    if (get_field<uint32_t>(locator, 0) == kZip64Locator) {
      const auto record = get_field<uint64_t>(locator, 8);
      if (record > end || end - record < kZip64EndSize + kZip64LocatorSize)
        fail("the zip64 locator points nowhere");
      const auto fields = read_range(*file_, record, kZip64EndSize);
      if (get_field<uint32_t>(fields, 0) != kZip64End) fail("the zip64 locator points nowhere");
      directory = {get_field<uint64_t>(fields, 48), get_field<uint64_t>(fields, 40),
                   get_field<uint64_t>(fields, 32)};
      limit = record;
    }
  }
  if (directory.offset > limit || directory.size > limit - directory.offset)
    fail("the directory lies outside");
  if (directory.count > directory.size / kCentralHeaderSize)
    fail("the directory is too short for its records");
  return directory;
}

void ZipReader::read_directory(const Directory& directory) {
  const auto bytes = read_range(*file_, directory.offset, directory.size);
  std::span<const std::byte> rest = bytes;
  std::vector<std::pair<uint64_t, uint64_t>> extents;
  std::unordered_set<std::string> names;
  for (uint64_t i = 0; i < directory.count; ++i) {
    uint64_t header;
    Record record = read_entry(rest, header);
    if (!names.insert(record.name).second) fail("two records are called " + record.name);
    locate_data(record, header, directory.offset);
    extents.emplace_back(header, record.offset + record.size);
    records_.push_back(std::move(record));
  }
  check_overlap(std::move(extents));
}

// Takes one entry off the directory; `header` gets the place of the local header.
ZipReader::Record ZipReader::read_entry(std::span<const std::byte>& rest, uint64_t& header) const {
  if (rest.size() < kCentralHeaderSize || get_field<uint32_t>(rest, 0) != kCentralHeader) {
    fail("a directory entry is malformed");
  }
  const uint64_t name_size = get_field<uint16_t>(rest, 28);
  const uint64_t extra_size = get_field<uint16_t>(rest, 30);
  const uint64_t comment_size = get_field<uint16_t>(rest, 32);
  const uint64_t length = kCentralHeaderSize + name_size + extra_size + comment_size;
  if (rest.size() < length) fail("a directory entry is cut off");
  Record record;
  const auto name = rest.subspan(kCentralHeaderSize, name_size);
  record.name.assign(reinterpret_cast<const char*>(name.data()), name.size());
  record.crc = get_field<uint32_t>(rest, 16);
  record.size = get_field<uint32_t>(rest, 24);
  uint64_t compressed = get_field<uint32_t>(rest, 20);
  header = get_field<uint32_t>(rest, 42);
  read_zip64(rest.subspan(kCentralHeaderSize + name_size, extra_size), record.name,
             {&record.size, &compressed, &header});
  if (get_field<uint16_t>(rest, 8) & kFlagEncrypted)
    fail("record " + record.name + " is encrypted");
  if (get_field<uint16_t>(rest, 10) != 0) {
    fail("record " + record.name + " is compressed, which torch never does");
  }
  if (compressed != record.size) fail("record " + record.name + " is stored, but with two sizes");
  rest = rest.subspan(length);
  return record;
}

// Of `values`, those that did not fit their 32 bits are in the zip64 extra field, in this order.
void ZipReader::read_zip64(std::span<const std::byte> extra, const std::string& name,
                           std::initializer_list<uint64_t*> values) const {
  while (extra.size() >= 4) {
    const uint16_t id = get_field<uint16_t>(extra, 0), size = get_field<uint16_t>(extra, 2);
    if (extra.size() - 4 < size) fail("record " + name + " has a malformed extra field");
    uint64_t field = 0;
    for (uint64_t* value : values) {
      if (id != kZip64Extra || *value != kIn64Bits) continue;
      if (size < field + 8) fail("record " + name + " has a malformed zip64 field");
      *value = get_field<uint64_t>(extra, 4 + field);
      field += 8;
    }
    extra = extra.subspan(4 + size);
  }
}

// The data follows the local header, whose name and padding have lengths of their own.
void ZipReader::locate_data(Record& record, uint64_t header, uint64_t end) const {
  if (header > end || end - header < kLocalHeaderSize)
    fail("record " + record.name + " lies outside");
  const auto fields = read_range(*file_, header, kLocalHeaderSize);
  if (get_field<uint32_t>(fields, 0) != kLocalHeader)
    fail("record " + record.name + " has no header");
  const uint64_t length =
      kLocalHeaderSize + get_field<uint16_t>(fields, 26) + get_field<uint16_t>(fields, 28);
  if (end - header < length || end - header - length < record.size)
    fail("record " + record.name + " lies outside");
  record.offset = header + length;
}

void ZipReader::check_overlap(std::vector<std::pair<uint64_t, uint64_t>> extents) const {
  std::sort(extents.begin(), extents.end());
  for (size_t i = 1; i < extents.size(); ++i) {
    if (extents[i].first < extents[i - 1].second) {
      fail("records overlap at offset " + std::to_string(extents[i].first));
    }
  }
}

const ZipReader::Record* ZipReader::find(std::string_view name) const {
  const auto found = std::find_if(records_.begin(), records_.end(),
                                  [&](const Record& r) { return r.name == name; });
  return found == records_.end() ? nullptr : &*found;
}

BytesPtr ZipReader::open(const Record& record) const {
  return std::make_shared<RecordBytes>(file_, record);
}

std::vector<std::byte> ZipReader::read(const Record& record) const {
  std::vector<std::byte> bytes(record.size);
  open(record)->read(0, bytes);
  return bytes;
}

}  // namespace anymesh
