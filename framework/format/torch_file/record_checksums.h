#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "framework/format/torch_file/zip.h"

namespace anymesh {

// Checks the CRCs of records that are read in parts and published later. The parts' CRCs are
// combined as the parts are read, in any order and by any threads. A record that is read completely
// is thus read only once.
//
//   RecordChecksums checks;
//   const BytesPtr bytes = zip.open(record, &checks);   // gives out bytes at once
//   ... bytes->read(...) ...
//   checks.finish(4);          // reads the missing parts; throws if a record is damaged
//
// Must outlive the sources that were opened with it.
class RecordChecksums {
 public:
  void finish(int threads);  // skips records that were never read

  // Instead of finish(), if several readers each read a part of the same files
  // (checkpoint/load/collective_checksums.h).
  class Record;
  struct Part {
    std::shared_ptr<const Record> record;
    std::string name;  // the file and the record
    uint64_t bytes;    // read and counted
    uint64_t size;     // of the record
    // Linear CRCs: the CRC XOR the CRC of as many zeros. `read` takes bytes not read as zeros.
    // XORing `read` over all readers' parts gives `whole`, the record's value.
    uint32_t read, whole;
  };
  // Sets whether reads from now on are counted (false if another reader counts the same bytes).
  void count(bool counts) { counts_ = counts; }
  // While one lives, reads of parts leave no trace: a record of which nothing else is read stays
  // unchecked. `checks` may be null.
  class Peek {
   public:
    explicit Peek(RecordChecksums* checks) : checks_(checks) { set(true); }
    ~Peek() { set(false); }
    Peek(const Peek&) = delete;
    Peek& operator=(const Peek&) = delete;

   private:
    void set(bool peeks) {
      if (checks_) checks_->peeks_ = peeks;
    }
    RecordChecksums* checks_;
  };
  // Returns a Part for each record that was read in part or whole. Throws if a record that was
  // read completely is damaged.
  std::vector<Part> finish_own() const;
  void check(const Part& part) const;  // reads the whole record; throws if it is damaged
  // Returns a note for the user if files have no CRCs; else an empty text.
  std::string note() const { return note_on_missing_crcs(without_crcs_); }
  static std::string note_on_missing_crcs(const std::set<std::string>& files);

 private:
  friend BytesPtr open_record(std::shared_ptr<const File>, std::shared_ptr<const ZipReader::Record>,
                              RecordChecksums*);
  void add(std::shared_ptr<const Record> record);

  bool counts_ = true, peeks_ = false;
  std::mutex mutex_;
  std::vector<std::shared_ptr<const Record>> records_;  // with CRCs, read in part
  std::set<std::string> without_crcs_;                  // files
};

// Throws, naming the record, unless `crc` is the record's CRC.
void expect_crc(const File& file, const ZipReader::Record& record, uint32_t crc);

// Implements ZipReader::open().
BytesPtr open_record(std::shared_ptr<const File> file,
                     std::shared_ptr<const ZipReader::Record> record, RecordChecksums* checks);

}  // namespace anymesh
