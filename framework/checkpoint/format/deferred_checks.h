#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "framework/checkpoint/format/zip.h"

namespace anymesh {

// Checks of records that are read in parts and published later: the CRCs of the parts are put
// together as they are read, in any order and by any threads, so that what is read completely is
// read once.
//
//   DeferredChecks checks;
//   const BytesPtr bytes = zip.open(record, &checks);   // gives out bytes at once
//   ... bytes->read(...) ...
//   checks.finish(4);          // goes over what nobody has read; throws if a record is damaged
//
// Must live as long as what was opened with it.
class DeferredChecks {
 public:
  void finish(int threads);  // of the records that something was read of

  // Instead, where several readers of the same files read a part each (see shared_checks.h).
  class Record;
  struct Part {
    std::shared_ptr<const Record> record;
    std::string name;  // of file and record
    uint64_t bytes;    // that were read and counted
    uint64_t size;     // of the record
    // CRC of what was read with zeros for the rest, less that of zeros alone: linear, so that those
    // of parts which make up the record XOR to that of the whole.
    uint32_t read, whole;
  };
  // Of what is read from now on: whether it counts, or another reader's read of the same does.
  void count(bool counts) { counts_ = counts; }
  // Of records that something was read of. Throws if one that was read completely is damaged.
  std::vector<Part> finish_own() const;
  void check(const Part& part) const;  // passes over the whole record

 private:
  friend BytesPtr open_record(std::shared_ptr<const File>, std::shared_ptr<const ZipReader::Record>,
                              DeferredChecks*);
  bool counts_ = true;
  std::mutex mutex_;
  std::vector<std::shared_ptr<const Record>> records_;
};

// Throws, naming the record, unless `crc` is its.
void expect_crc(const File& file, const ZipReader::Record& record, uint32_t crc);

// What ZipReader::open returns; see there.
BytesPtr open_record(std::shared_ptr<const File> file,
                     std::shared_ptr<const ZipReader::Record> record, DeferredChecks* checks);

}  // namespace anymesh
