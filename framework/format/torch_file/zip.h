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

#include "framework/format/io/byte_source.h"
#include "framework/format/io/write_files.h"

namespace anymesh {

class RecordChecksums;

// Zip archives as torch.save writes them: records stored without compression, zip64 where needed.
//
// The reader checks every length and offset against the file. It refuses compressed, encrypted,
// duplicate or overlapping records, and more than 131072 of them. No byte of a record is given out
// before the whole record has passed its CRC: the first partial read after each open() goes over
// the whole record, unless the check is deferred (record_checksums.h). Torch can be told to write
// no CRCs: then every record's is 0, and none is checked.
class ZipReader {
 public:
  struct Record {
    std::string name;
    uint64_t offset = 0;  // the data's, in the file
    uint64_t size = 0;
    uint32_t crc = 0;
    bool has_crc = true;
  };

  explicit ZipReader(std::shared_ptr<const File> file);
  explicit ZipReader(const std::filesystem::path& path) : ZipReader(std::make_shared<File>(path)) {}

  const std::vector<Record>& records() const { return *records_; }
  const Record* find(std::string_view name) const;
  bool has_crcs() const { return records().empty() || records()[0].has_crc; }
  // Opens a record of records(). The returned bytes keep the records alive.
  BytesPtr open(const Record& record, RecordChecksums* checks = nullptr) const;
  std::vector<std::byte> read(const Record& record) const;
  void check(const Record& record) const;  // throws if the record is damaged
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
  class Window;
  void locate_data(Record& record, uint64_t header, uint64_t end, Window& headers) const;
  [[noreturn]] void fail(uint64_t at, const std::string& what) const;

  std::shared_ptr<const File> file_;
  std::shared_ptr<std::vector<Record>> records_ = std::make_shared<std::vector<Record>>();
  std::unordered_map<std::string_view, const Record*> by_name_;
};

// The layout of an archive to be written, with each record's data at a multiple of 64 bytes.
//   ZipLayout zip(crcs); zip.add("archive/version", "3\n"); zip.add("archive/data/0", bytes); ...
//   stream(zip.finish());
// All sizes follow from the records' sizes, so an archive is laid out before its CRCs are known.
class ZipLayout {
 public:
  // `crcs` are the CRCs of the non-empty sources, in order; empty if not known yet.
  explicit ZipLayout(std::span<const uint32_t> crcs = {}) : crcs_(crcs) {}

  void add(std::string name, std::string_view text);
  void add(std::string name, const BytesPtr& source);  // null: no bytes
  const std::vector<ZipReader::Record>& records() const { return records_; }
  FileLayout finish();  // adds the directory

 private:
  void begin(std::string name, uint64_t size);  // adds the header before the data
  void end(uint32_t crc);                       // adds the descriptor after the data

  std::span<const uint32_t> crcs_;
  FileLayout file_;
  std::vector<ZipReader::Record> records_;
  std::vector<uint64_t> headers_;  // offset of each record's local header
};

}  // namespace anymesh
