// Megatron's token store. PREFIX.bin holds the tokens of every document one after another.
// PREFIX.idx holds where each begins and how long it is.
//
//   .idx   offset  bytes  content (little-endian)
//               0      9  "MMIDIDX\0\0"
//               9      8  version, 1
//              17      1  token type, see TokenType
//              18      8  S, the number of sequences (for GPT one sequence is one document)
//              26      8  D, the number of entries of the document index
//              34     4S  length of each sequence, in tokens
//         34 + 4S     8S  where each begins in .bin, in bytes: where the one before it ends
//        34 + 12S     8D  first sequence of each document, and S at the end
//
// After the last sequence .bin may hold one more token for each document: the end of document that
// Megatron-DeepSpeed writes and does not count. Files with sizes, lengths, offsets or a document
// index that do not fit together throw, with name and offset.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <vector>

namespace anymesh {

enum class TokenType : uint8_t {
  kUint8 = 1,
  kInt8 = 2,
  kInt16 = 3,
  kInt32 = 4,
  kInt64 = 5,
  kFloat64 = 6,
  kFloat32 = 7,
  kUint16 = 8
};

int token_bytes(TokenType type);

// Returns the type that Megatron's tools write for a vocabulary: uint16 below 65500, else int32.
TokenType token_type_for_vocabulary(int64_t vocab_size);

// A whole file mapped read-only. The file must not shrink while it is mapped.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::span<const std::byte> bytes() const { return bytes_; }
  // Takes what has been read out of this process's memory. It comes back when it is read again.
  void forget() const;

 private:
  std::filesystem::path path_;
  std::span<const std::byte> bytes_;
};

// Read-only view of PREFIX.{bin,idx}; both are mapped, nothing is copied. Thread-safe.
class IndexedDataset {
 public:
  explicit IndexedDataset(const std::string& prefix);

  const std::string& prefix() const { return prefix_; }
  TokenType token_type() const { return type_; }
  int64_t size() const { return size_; }              // sequences
  int64_t length(int64_t sequence) const;             // tokens of one sequence
  int64_t tokens(int64_t first, int64_t last) const;  // of sequences [first, last)

  // Returns a hash of the lengths, and of the first and last 4 KiB of tokens. It tells another
  // corpus without reading this one.
  uint64_t fingerprint() const;

  // Copies tokens [offset, offset + out.size()) of a sequence. Throws for a floating-point token
  // that is no integer.
  void read(int64_t sequence, int64_t offset, std::span<int64_t> out) const;

 private:
  void check_header();
  void check_sequences() const;
  void check_documents() const;
  void check_rest() const;
  int64_t begin(int64_t sequence) const;  // byte offset in .bin
  template <class Visit>
  void for_each(int64_t first, int64_t last, const Visit& visit) const;

  std::string prefix_;
  MappedFile index_;
  MappedFile tokens_;
  TokenType type_{};
  int64_t size_ = 0;
  int64_t entries_ = 0;  // in the document index
};

// Writes PREFIX.{bin,idx}. Tokens are streamed to files in a folder PREFIX.tmp (output_folder.h),
// which finish() renames. Without finish() nothing remains. Files that a killed process left there
// are removed; a PREFIX.tmp with anything else in it throws. REQUIRES: nobody else writes to the
// prefix.
class IndexedDatasetBuilder {
 public:
  IndexedDatasetBuilder(const std::string& prefix, TokenType type);
  ~IndexedDatasetBuilder();
  IndexedDatasetBuilder(const IndexedDatasetBuilder&) = delete;
  IndexedDatasetBuilder& operator=(const IndexedDatasetBuilder&) = delete;

  // Appends a document of one sequence. An empty document only gets an entry in the document index,
  // as in Megatron.
  void add_document(std::span<const int32_t> tokens) { add_document(tokens, tokens.size()); }

  // Likewise, but records another length (see --count-eod of preprocess_data).
  void add_document(std::span<const int32_t> tokens, int64_t recorded_length);

  void finish();

  // If a finish() was killed between its renames, undoes it while the old index is there, else ends
  // it. Throws for the same folders as the constructor.
  static void finish_interrupted(const std::string& prefix);

 private:
  void write_tokens(std::span<const int32_t> tokens);
  void write_index();

  std::string prefix_;
  TokenType type_;
  std::filesystem::path folder_;
  std::ofstream bin_;
  std::vector<int32_t> lengths_;
  std::vector<int64_t> document_starts_{0};
};

}  // namespace anymesh
