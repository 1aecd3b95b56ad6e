#include <algorithm>
#include <stdexcept>
#include <string_view>

#include "framework/format/torch_file/record_checksums.h"
#include "framework/format/torch_file/zip.h"
#include "framework/format/torch_file/zip_format.h"
#include "framework/util/errors.h"
#include "framework/util/utf8.h"

namespace anymesh {
namespace {

constexpr uint64_t kMaxComment = 0xFFFF;
constexpr uint64_t kMaxRecords = 1 << 17;  // each takes up to 200 bytes besides its name
constexpr uint64_t kMany = 64;             // records; headers of small ones are read ahead
constexpr uint64_t kAhead = 4096;

std::vector<std::byte> read_range(const File& file, uint64_t offset, uint64_t size) {
  std::vector<std::byte> bytes(size);
  file.read(offset, bytes);
  return bytes;
}

// Whether a name is UTF-8 without control characters, so that a message may repeat it.
bool is_text(std::string_view text) {
  while (!text.empty()) {
    const CodePoint c = decode_utf8(text);
    if (!c.valid || c.value < ' ' || c.value == 0x7F) return false;
    text.remove_prefix(c.bytes);
  }
  return true;
}

}  // namespace

// Reads small ranges that are close to each other, as many local headers are, with few calls.
class ZipReader::Window {
 public:
  // Reads at least `ahead` bytes at a time.
  Window(const File& file, uint64_t ahead) : file_(file), ahead_(ahead) {}
  // The range must lie in the file. Valid until the next call.
  std::span<const std::byte> read(uint64_t offset, uint64_t size) {
    if (offset < begin_ || offset + size > begin_ + bytes_.size()) {
      bytes_ = read_range(file_, offset, std::max(size, std::min(ahead_, file_.size() - offset)));
      begin_ = offset;
    }
    return std::span(bytes_).subspan(offset - begin_, size);
  }

 private:
  const File& file_;
  uint64_t ahead_, begin_ = 0;
  std::vector<std::byte> bytes_;
};

ZipReader::ZipReader(std::shared_ptr<const File> file) : file_(std::move(file)) {
  read_directory(find_directory());
}

void ZipReader::fail(uint64_t at, const std::string& what) const {
  throw DamagedFile(file_->path().string() + ": offset " + std::to_string(file_->begin() + at) +
                    ": not a valid zip archive: " + what);
}

bool ZipReader::is_zip(const File& file) {
  if (file.size() < 4) return false;
  const uint32_t signature = get_field<uint32_t>(read_range(file, 0, 4), 0);
  return signature == kLocalHeader || signature == kEnd;
}

ZipReader::Directory ZipReader::find_directory() const {
  const uint64_t size = file_->size();
  if (size < kEndSize) fail(0, "only " + std::to_string(size) + " bytes");
  // Torch writes no comment after this record. Searches for it only if it is not at the end.
  uint64_t at = 0, tail_size = kEndSize;
  auto tail = read_range(*file_, size - tail_size, tail_size);
  while (get_field<uint32_t>(tail, at) != kEnd ||
         at + kEndSize + get_field<uint16_t>(tail, at + 20) != tail_size) {
    if (tail_size == kEndSize && size > kEndSize) {
      tail_size = std::min(size, kEndSize + kMaxComment);
      tail = read_range(*file_, size - tail_size, tail_size);
      at = tail_size - kEndSize;
    } else if (at-- == 0) {
      fail(size, "no end-of-directory record (is the file truncated?)");
    }
  }
  const uint64_t end = size - tail_size + at;
  const Directory small{get_field<uint32_t>(tail, at + 16), get_field<uint32_t>(tail, at + 12),
                        get_field<uint16_t>(tail, at + 10)};
  Directory directory = small;
  uint64_t limit = end;
  if (end >= kZip64LocatorSize) {
    const auto locator = read_range(*file_, end - kZip64LocatorSize, kZip64LocatorSize);
    if (get_field<uint32_t>(locator, 0) == kZip64Locator) {
      limit = get_field<uint64_t>(locator, 8);
      directory = read_zip64_end(limit, end - kZip64LocatorSize);
      const auto differ = [](uint64_t narrow, uint64_t wide, uint64_t most) {
        return narrow != std::min(wide, most) && narrow != most;
      };
      if (differ(small.offset, directory.offset, kIn64Bits) ||
          differ(small.size, directory.size, kIn64Bits) ||
          differ(small.count, directory.count, UINT16_MAX))
        fail(end, "it describes the directory otherwise than the zip64 record does");
    }
  }
  if (directory.offset > limit || directory.size > limit - directory.offset)
    fail(end, "the directory lies outside");
  if (directory.count > std::min(directory.size / kCentralHeaderSize, kMaxRecords)) {
    fail(end, "a directory of " + std::to_string(directory.size) + " bytes with " +
                  std::to_string(directory.count) + " records, expected at most " +
                  std::to_string(kMaxRecords) + " of 46 bytes or more");
  }
  return directory;
}

ZipReader::Directory ZipReader::read_zip64_end(uint64_t at, uint64_t locator) const {
  const auto nowhere = [&] { fail(locator, "the zip64 locator points nowhere"); };
  if (at > locator || locator - at < kZip64EndSize) nowhere();
  const auto fields = read_range(*file_, at, kZip64EndSize);
  if (get_field<uint32_t>(fields, 0) != kZip64End) nowhere();
  return {get_field<uint64_t>(fields, 48), get_field<uint64_t>(fields, 40),
          get_field<uint64_t>(fields, 32)};
}

void ZipReader::read_directory(const Directory& directory) {
  const auto bytes = read_range(*file_, directory.offset, directory.size);
  std::span<const std::byte> rest = bytes;
  std::vector<std::pair<uint64_t, uint64_t>> extents;
  const bool many_small = directory.count > kMany && directory.offset / directory.count < kAhead;
  Window headers(*file_, many_small ? kAhead : 0);
  records_->reserve(directory.count);  // keeps pointers to them valid
  by_name_.reserve(directory.count);
  extents.reserve(directory.count);
  for (uint64_t i = 0; i < directory.count; ++i) {
    const uint64_t at = directory.offset + (directory.size - rest.size());
    uint64_t header;
    Record& record = records_->emplace_back(read_entry(rest, at, header));
    if (!by_name_.emplace(record.name, &record).second)
      fail(at, "two records are called " + record.name);
    locate_data(record, header, directory.offset, headers);
    extents.emplace_back(header, record.offset + record.size);
  }
  if (!rest.empty()) fail(directory.offset, "the directory has more than its records");
  if (std::ranges::all_of(*records_, [](const Record& record) { return record.crc == 0; }))
    for (Record& record : *records_) record.has_crc = false;
  std::ranges::sort(extents);
  const auto overlaps = [](const auto& a, const auto& b) { return b.first < a.second; };
  const auto found = std::ranges::adjacent_find(extents, overlaps);
  if (found != extents.end()) fail(std::next(found)->first, "records overlap");
}

// Takes the entry at byte `at` off the directory. Sets `header` to the local header's offset.
ZipReader::Record ZipReader::read_entry(std::span<const std::byte>& rest, uint64_t at,
                                        uint64_t& header) const {
  if (rest.size() < kCentralHeaderSize || get_field<uint32_t>(rest, 0) != kCentralHeader) {
    fail(at, "a directory entry is malformed");
  }
  const uint64_t name_size = get_field<uint16_t>(rest, 28);
  const uint64_t extra_size = get_field<uint16_t>(rest, 30);
  const uint64_t comment_size = get_field<uint16_t>(rest, 32);
  const uint64_t length = kCentralHeaderSize + name_size + extra_size + comment_size;
  if (rest.size() < length) fail(at, "a directory entry is cut off");
  Record record;
  const auto name = rest.subspan(kCentralHeaderSize, name_size);
  record.name.assign(reinterpret_cast<const char*>(name.data()), name.size());
  if (!is_text(record.name)) fail(at, "the name of a record is no text");
  record.crc = get_field<uint32_t>(rest, 16);
  record.size = get_field<uint32_t>(rest, 24);
  uint64_t compressed = get_field<uint32_t>(rest, 20);
  header = get_field<uint32_t>(rest, 42);
  read_zip64(rest.subspan(kCentralHeaderSize + name_size, extra_size), at, record.name,
             {&record.size, &compressed, &header});
  if (get_field<uint16_t>(rest, 8) & kFlagEncrypted)
    fail(at, "record " + record.name + " is encrypted");
  if (get_field<uint16_t>(rest, 10) != 0) {
    fail(at, "record " + record.name + " is compressed, which torch never does");
  }
  if (compressed != record.size)
    fail(at, "record " + record.name + " is stored, but with two sizes");
  rest = rest.subspan(length);
  return record;
}

// Reads the `values` that did not fit 32 bits from the zip64 extra field, which keeps their order.
void ZipReader::read_zip64(std::span<const std::byte> extra, uint64_t at, const std::string& name,
                           std::initializer_list<uint64_t*> values) const {
  while (extra.size() >= 4) {
    const uint16_t id = get_field<uint16_t>(extra, 0), size = get_field<uint16_t>(extra, 2);
    if (extra.size() - 4 < size) fail(at, "record " + name + " has a malformed extra field");
    uint64_t field = 0;
    for (uint64_t* value : values) {
      if (id != kZip64Extra || *value != kIn64Bits) continue;
      if (size < field + 8) fail(at, "record " + name + " has a malformed zip64 field");
      *value = get_field<uint64_t>(extra, 4 + field);
      field += 8;
    }
    extra = extra.subspan(4 + size);
  }
}

// Finds the data, which follows the local header and its name and padding of their own lengths.
void ZipReader::locate_data(Record& record, uint64_t header, uint64_t end, Window& headers) const {
  const auto outside = [&] { fail(header, "record " + record.name + " lies outside"); };
  if (header > end || end - header < kLocalHeaderSize) outside();
  const auto fields = headers.read(header, kLocalHeaderSize);
  if (get_field<uint32_t>(fields, 0) != kLocalHeader)
    fail(header, "record " + record.name + " has no header");
  const uint64_t name_size = get_field<uint16_t>(fields, 26);
  const uint64_t length = kLocalHeaderSize + name_size + get_field<uint16_t>(fields, 28);
  if (end - header < length || end - header - length < record.size) outside();
  const auto name = headers.read(header + kLocalHeaderSize, name_size);
  if (!std::ranges::equal(name, std::as_bytes(std::span(record.name))))
    fail(header, "the header of record " + record.name + " has another name");
  record.offset = header + length;
}

const ZipReader::Record* ZipReader::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

BytesPtr ZipReader::open(const Record& record, RecordChecksums* checks) const {
  return open_record(file_, std::shared_ptr<const Record>(records_, &record), checks);
}

std::vector<std::byte> ZipReader::read(const Record& record) const {
  std::vector<std::byte> bytes(record.size);
  open(record)->read(0, bytes);
  return bytes;
}

void ZipReader::check(const Record& record) const {
  if (record.has_crc) expect_crc(*file_, record, file_->crc(record.offset, record.size));
}

}  // namespace anymesh
