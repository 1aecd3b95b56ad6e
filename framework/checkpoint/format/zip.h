#pragma once

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "framework/checkpoint/format/byte_source.h"
#include "framework/checkpoint/format/stream_files.h"

namespace anymesh {

class DeferredChecks;

// Zip archives as torch.save writes them: records stored without compression, zip64 where needed.
//
// The reader checks every length and offset against the file, and refuses compressed, encrypted,
// duplicate or overlapping records, and more than 131072 of them. No byte of a record is given out
// before the whole record has met its CRC: the first read of a part goes over all of it, once for
// each open(), unless the check is deferred (deferred_checks.h).
class ZipReader {
 public:
  struct Record {
    std::string name;
    uint64_t offset = 0;  // of the data, in the file
    uint64_t size = 0;
    uint32_t crc = 0;
  };

  explicit ZipReader(const std::filesystem::path& path);

  const std::vector<Record>& records() const { return *records_; }
  const Record* find(std::string_view name) const;
  // One of records(), which stay as long as what is open.
  BytesPtr open(const Record& record, DeferredChecks* checks = nullptr) const;
  std::vector<std::byte> read(const Record& record) const;
  void check(const Record& record) const;  // throws if it is damaged
  const std::shared_ptr<const File>& file() const { return file_; }

  static bool is_zip(const File& file);  // by its first bytes

 private:
  struct Directory {
    uint64_t offset, size, count;
  };
  Directory find_directory() const;
  Directory read_zip64_end(uint64_t at, uint64_t locator) const;
  void read_directory(const Directory& directory);
  Record read_entry(std::span<const std::byte>& rest, uint64_t at, uint64_t& header) const;
  void read_zip64(std::span<const std::byte> extra, uint64_t at, const std::string& name,
                  std::initializer_list<uint64_t*> values) const;
  void locate_data(Record& record, uint64_t header, uint64_t end) const;
  [[noreturn]] void fail(uint64_t at, const std::string& what) const;

  std::shared_ptr<const File> file_;
  std::shared_ptr<std::vector<Record>> records_ = std::make_shared<std::vector<Record>>();
  std::unordered_map<std::string_view, const Record*> by_name_;
};

// An archive that is to be written, each record's data at a multiple of 64 bytes.
//   ZipLayout zip(crcs); zip.add("archive/version", "3\n"); zip.add("archive/data/0", bytes); ...
//   stream(zip.finish());
// All sizes follow from those of the records, so that an archive is laid out before its CRCs are
// known.
class ZipLayout {
 public:
  // `crcs`: of the sources that are not empty, in order; none = not known yet.
  explicit ZipLayout(std::span<const uint32_t> crcs = {}) : crcs_(crcs) {}

  void add(std::string name, std::string_view text);
  void add(std::string name, const BytesPtr& source);  // null: no bytes
  const std::vector<ZipReader::Record>& records() const { return records_; }
  FileLayout finish();  // with the directory

 private:
  void begin(std::string name, uint64_t size);  // the header before the data
  void end(uint32_t crc);                       // the descriptor behind it

  std::span<const uint32_t> crcs_;
  FileLayout file_;
  std::vector<ZipReader::Record> records_;
  std::vector<uint64_t> headers_;  // where the local header of each record is
};

}  // namespace anymesh
