#include "framework/data/indexed_dataset.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>
#include <type_traits>
#include <variant>

#include "framework/format/folder.h"
#include "framework/format/io.h"
#include "framework/format/layout.h"
#include "framework/util/errors.h"
#include "framework/util/fnv.h"
#include "framework/util/input_file.h"

namespace anymesh {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr std::string_view kMagic("MMIDIDX\0\0", 9);
constexpr uint64_t kVersion = 1;
constexpr uint64_t kVersionOffset = 9;
constexpr uint64_t kTypeOffset = 17;
constexpr uint64_t kSequencesOffset = 18;
constexpr uint64_t kDocumentsOffset = 26;
constexpr uint64_t kHeaderBytes = 34;

// The arrays behind the 34-byte header are not aligned, hence memcpy.
template <class T>
T load(std::span<const std::byte> bytes, uint64_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

// Zeros of the C++ types for the token types, from 1 on.
using Zero = std::variant<uint8_t, int8_t, int16_t, int32_t, int64_t, double, float, uint16_t>;
constexpr std::array<Zero, 8> kZeros{uint8_t{}, int8_t{}, int16_t{}, int32_t{},
                                     int64_t{}, double{}, float{},   uint16_t{}};

// Calls visit(T{}) with the C++ type of a token type.
template <class Visit>
auto with_token_type(TokenType type, Visit visit) {
  return std::visit(visit, kZeros.at(static_cast<size_t>(type) - 1));
}

template <class... Parts>
[[noreturn]] void refuse(const std::filesystem::path& file, const Parts&... parts) {
  throw_error<DamagedFile>(file.string(), ": ", parts...);
}

template <class... Parts>
[[noreturn]] void refuse_at(const std::filesystem::path& file, uint64_t offset,
                            const Parts&... parts) {
  throw_error<DamagedFile>(file.string(), ": offset ", offset, ": ", parts...);
}

std::string system_error() { return std::strerror(errno); }

// File names in the build folder.
constexpr const char *kTokens = "tokens.bin", *kIndex = "tokens.idx", *kOldTokens = "old.bin";

template <class T>
void write_value(std::ostream& out, T value) {
  out.write(reinterpret_cast<const char*>(&value), sizeof(T));
}

}  // namespace

int token_bytes(TokenType type) {
  return with_token_type(type, [](auto zero) { return static_cast<int>(sizeof(zero)); });
}

TokenType token_type_for_vocabulary(int64_t vocab_size) {
  return vocab_size < 65500 ? TokenType::kUint16 : TokenType::kInt32;
}

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  const int fd = open_to_read(path);
  struct stat info {};
  void* data = nullptr;
  std::string error;
  if (fstat(fd, &info) != 0)
    error = "cannot stat: " + system_error();
  else if (info.st_size > 0)
    data = mmap(nullptr, info.st_size, PROT_READ, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) error = "cannot map: " + system_error();
  close(fd);
  if (!error.empty()) refuse(path, error);
  bytes_ = {static_cast<const std::byte*>(data), static_cast<size_t>(info.st_size)};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

void MappedFile::forget() const {
  if (!bytes_.empty()) madvise(const_cast<std::byte*>(bytes_.data()), bytes_.size(), MADV_DONTNEED);
}

// Calls visit(i) for sequences [first, last). The index may be larger than the rest of a process.
template <class Visit>
void IndexedDataset::for_each(int64_t first, int64_t last, const Visit& visit) const {
  constexpr int64_t kAtOnce = 1 << 20;
  for (int64_t begin = first; begin < last; begin += kAtOnce) {
    for (int64_t i = begin; i < std::min(begin + kAtOnce, last); ++i) visit(i);
    if (last - first > kAtOnce) index_.forget();
  }
}

IndexedDataset::IndexedDataset(const std::string& prefix)
    : prefix_(prefix), index_(prefix + ".idx"), tokens_(prefix + ".bin") {
  check_header();
  check_sequences();
  check_documents();
  check_rest();
}

void IndexedDataset::check_header() {
  const auto& file = index_.path();
  const auto bytes = index_.bytes();
  if (bytes.size() < kHeaderBytes)
    refuse(file, "has ", bytes.size(), " bytes, expected a header of ", kHeaderBytes);
  if (std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0)
    refuse_at(file, 0, "does not begin with MMIDIDX, so it is no mmap index (--dataset-impl mmap)");
  const auto version = load<uint64_t>(bytes, kVersionOffset);
  if (version != kVersion) refuse_at(file, kVersionOffset, "version ", version, ", expected 1");
  const auto type = load<uint8_t>(bytes, kTypeOffset);
  if (type < 1 || type > 8)
    refuse_at(file, kTypeOffset, "token type ", int{type}, ", expected 1 to 8");
  type_ = TokenType{type};

  const auto sequences = load<uint64_t>(bytes, kSequencesOffset);
  const auto documents = load<uint64_t>(bytes, kDocumentsOffset);
  // The first two tests keep the third from overflowing.
  if (sequences > bytes.size() || documents > bytes.size() ||
      bytes.size() != kHeaderBytes + 12 * sequences + 8 * documents)
    refuse_at(file, kSequencesOffset, sequences, " sequences and ", documents,
              " document entries do not make a file of ", bytes.size(), " bytes");
  size_ = static_cast<int64_t>(sequences);
  entries_ = static_cast<int64_t>(documents);
}

void IndexedDataset::check_sequences() const {
  const uint64_t room = tokens_.bytes().size();
  const uint64_t item = token_bytes(type_);
  uint64_t next = 0;
  for_each(0, size_, [&](int64_t i) {
    const int64_t tokens = length(i);
    if (tokens < 0)
      refuse_at(index_.path(), kHeaderBytes + 4 * i, "sequence ", i, " has length ", tokens);
    const auto start = static_cast<uint64_t>(begin(i));  // a negative one becomes too large
    if (start > room || tokens * item > room - start)
      refuse_at(index_.path(), kHeaderBytes + 4 * size_ + 8 * i, "sequence ", i, " of ", tokens,
                " tokens begins at byte ", begin(i), " of ", tokens_.path().string(),
                ", which has ", room, " bytes");
    if (start != next)
      refuse_at(index_.path(), kHeaderBytes + 4 * size_ + 8 * i, "sequence ", i, " begins at byte ",
                start, ", expected ", next, ", where the one before it ends");
    next = start + tokens * item;
  });
}

void IndexedDataset::check_documents() const {
  const uint64_t start = kHeaderBytes + 12 * size_;
  if (entries_ == 0) refuse_at(index_.path(), kDocumentsOffset, "the document index is empty");
  int64_t previous = 0;
  for_each(0, entries_, [&](int64_t i) {
    const auto first = load<int64_t>(index_.bytes(), start + 8 * i);
    const int64_t lowest = i == entries_ - 1 ? size_ : previous;
    const int64_t highest = i == 0 ? lowest : size_;
    if (first < lowest || first > highest)
      refuse_at(index_.path(), start + 8 * i, "entry ", i, " of the document index is ", first,
                ", expected ", lowest, " to ", highest);
    previous = first;
  });
}

// Throws if .bin holds more beyond the last sequence than one end token per document. That happens
// if its tokens are wider than the index says, or if it is of another run.
void IndexedDataset::check_rest() const {
  const int64_t item = token_bytes(type_), documents = entries_ - 1,
                bytes = std::ssize(tokens_.bytes()),
                counted = size_ == 0 ? 0 : begin(size_ - 1) + length(size_ - 1) * item,
                rest = bytes - counted;
  if (rest <= documents * item && rest % item == 0) return;
  refuse(tokens_.path(), "has ", bytes, " bytes, but ", index_.path().string(), " accounts for ",
         counted, ", ", counted / item, " tokens of ", item, " bytes, and an end for each of its ",
         documents, " documents: the two are not of one run of preprocess_data, or the .bin has ",
         "another token type; take both files from one run");
}

int64_t IndexedDataset::length(int64_t sequence) const {
  return load<int32_t>(index_.bytes(), kHeaderBytes + 4 * sequence);
}

int64_t IndexedDataset::tokens(int64_t first, int64_t last) const {
  int64_t tokens = 0;
  for_each(first, last, [&](int64_t i) { tokens += length(i); });
  return tokens;
}

uint64_t IndexedDataset::fingerprint() const {
  constexpr size_t kSample = 4096;
  uint64_t hash = kFnvStart;
  for_each(0, size_, [&](int64_t i) { hash = fnv_next(hash, static_cast<uint64_t>(length(i))); });
  const std::string_view tokens(reinterpret_cast<const char*>(tokens_.bytes().data()),
                                tokens_.bytes().size());
  return fnv(tokens.substr(tokens.size() - std::min(kSample, tokens.size())),
             fnv(tokens.substr(0, kSample), hash));
}

int64_t IndexedDataset::begin(int64_t sequence) const {
  return load<int64_t>(index_.bytes(), kHeaderBytes + 4 * size_ + 8 * sequence);
}

void IndexedDataset::read(int64_t sequence, int64_t offset, std::span<int64_t> out) const {
  if (sequence < 0 || sequence >= size_)
    refuse(index_.path(), "sequence ", sequence, " was asked for, but there are ", size_);
  const auto count = static_cast<int64_t>(out.size());
  if (offset < 0 || offset > length(sequence) || count > length(sequence) - offset)
    refuse(index_.path(), count, " tokens at ", offset, " of sequence ", sequence,
           " were asked for, but it has ", length(sequence));
  with_token_type(type_, [&](auto zero) {
    using T = decltype(zero);
    uint64_t at = begin(sequence) + offset * sizeof(T);
    for (int64_t& token : out) {
      const T value = load<T>(tokens_.bytes(), at);
      if constexpr (std::is_floating_point_v<T>) {
        // Written so that NaN fails; 2^53 is where a double stops counting.
        if (!(std::abs(value) <= 9007199254740992.0 && value == std::trunc(value)))
          refuse_at(tokens_.path(), at, "token ", std::to_string(value), " is not an integer");
      }
      token = static_cast<int64_t>(value);
      at += sizeof(T);
    }
  });
}

IndexedDatasetBuilder::IndexedDatasetBuilder(const std::string& prefix, TokenType type)
    : prefix_(prefix), type_(type), folder_(temporary_of(prefix)) {
  prepare_build_folder(folder_, {.others = {kTokens, kIndex, kOldTokens}});
  bin_.open(folder_ / kTokens, std::ios::binary);
  if (!bin_) refuse(folder_ / kTokens, "cannot create: ", system_error());
}

IndexedDatasetBuilder::~IndexedDatasetBuilder() {
  try {
    finish_interrupted(prefix_);
    remove_build_folder(folder_);
  } catch (const std::exception&) {  // the folder stays, as after a kill
  }
}

void IndexedDatasetBuilder::add_document(std::span<const int32_t> tokens, int64_t recorded_length) {
  if (recorded_length < 0 || recorded_length > static_cast<int64_t>(tokens.size()) ||
      recorded_length > std::numeric_limits<int32_t>::max())
    refuse(prefix_, "document ", document_starts_.size() - 1, " of ", tokens.size(),
           " tokens cannot have length ", recorded_length,
           " in the index, which counts to 2^31 - 1");
  write_tokens(tokens);
  if (!tokens.empty()) lengths_.push_back(static_cast<int32_t>(recorded_length));
  document_starts_.push_back(static_cast<int64_t>(lengths_.size()));
}

void IndexedDatasetBuilder::write_tokens(std::span<const int32_t> tokens) {
  with_token_type(type_, [&](auto zero) {
    using T = decltype(zero);
    std::vector<T> packed(tokens.size());
    for (size_t i = 0; i < tokens.size(); ++i) {
      packed[i] = static_cast<T>(tokens[i]);
      if (static_cast<double>(packed[i]) != tokens[i])
        refuse(prefix_ + ".bin", "token ", tokens[i], " does not fit in ", sizeof(T), " bytes");
    }
    bin_.write(reinterpret_cast<const char*>(packed.data()), packed.size() * sizeof(T));
  });
  if (!bin_) refuse(folder_ / kTokens, "cannot write: ", system_error());
}

void IndexedDatasetBuilder::write_index() {
  const std::filesystem::path path = folder_ / kIndex;
  std::ofstream out(path, std::ios::binary);
  out << kMagic;
  write_value(out, kVersion);
  write_value(out, type_);
  write_value<uint64_t>(out, lengths_.size());
  write_value<uint64_t>(out, document_starts_.size());
  for (const int32_t length : lengths_) write_value(out, length);
  int64_t begin = 0;
  for (const int32_t length : lengths_) {
    write_value(out, begin);
    begin += int64_t{length} * token_bytes(type_);
  }
  for (const int64_t first : document_starts_) write_value(out, first);
  out.close();
  if (!out) refuse(path, "cannot write: ", system_error());
}

void IndexedDatasetBuilder::finish() {
  bin_.close();
  if (!bin_) refuse(folder_ / kTokens, "cannot write: ", system_error());
  write_index();
  sync_file(folder_ / kTokens);
  sync_file(folder_ / kIndex);
  // The old .bin goes first, then its index, so that no index ever describes another .bin, whatever
  // interrupts us.
  if (const std::string old = prefix_ + ".bin"; std::filesystem::exists(old))
    rename_durably(old, folder_ / kOldTokens);
  std::filesystem::remove(prefix_ + ".idx");
  rename_durably(folder_ / kTokens, prefix_ + ".bin");
  rename_durably(folder_ / kIndex, prefix_ + ".idx");
}

void IndexedDatasetBuilder::finish_interrupted(const std::string& prefix) {
  namespace fs = std::filesystem;
  const fs::path folder = temporary_of(prefix);
  check_build_folder(folder);
  const fs::path old = folder / kOldTokens, tokens = folder / kTokens, index = folder / kIndex,
                 bin = prefix + ".bin", idx = prefix + ".idx";
  if (fs::exists(old) && !fs::exists(bin)) rename_durably(fs::exists(idx) ? old : tokens, bin);
  if (fs::exists(index) && !fs::exists(tokens) && !fs::exists(idx)) rename_durably(index, idx);
}

}  // namespace anymesh
