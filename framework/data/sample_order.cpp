#include "framework/data/sample_order.h"

#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <numeric>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "framework/data/numpy_random.h"
#include "framework/format/io.h"
#include "framework/util/input_file.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSmall = 1 << 20;  // entries that take less time to make than to keep
constexpr std::array<char, 8> kOrderMagic{'A', 'M', 'O', 'R', 'D', 'E', 'R', '1'};

// The file's first bytes. The three arrays follow.
struct OrderHeader {
  std::array<char, 8> magic = kOrderMagic;
  uint64_t corpus = 0;  // its fingerprint
  int64_t first = 0, last = 0, epochs = 0, samples = 0, mixed_samples = 0, seq_length = 0;
  uint32_t seed = 0, last_apart = 0;
  uint32_t crc = 0, reserved = 0;

  uint64_t documents() const { return static_cast<uint64_t>(epochs * (last - first)); }
  uint64_t bytes() const {
    const auto count = static_cast<uint64_t>(samples);
    return sizeof(OrderHeader) + 4 * documents() + 8 * (count + 1) + 4 * count;
  }
};
static_assert(sizeof(OrderHeader) == 80);

OrderHeader header_of(const IndexedDataset& corpus, const OrderRule& rule) {
  return {.corpus = corpus.fingerprint(),
          .first = rule.documents.first,
          .last = rule.documents.last,
          .epochs = rule.epochs,
          .samples = rule.samples,
          .mixed_samples = rule.mixed_samples,
          .seq_length = rule.seq_length,
          .seed = rule.seed,
          .last_apart = rule.last_apart};
}

struct Arrays {
  std::vector<int32_t> documents;
  std::vector<SamplePosition> positions;
  std::vector<uint32_t> samples;
};

void order_documents(const OrderRule& rule, std::vector<int32_t>& order, std::mt19937& rng) {
  const DocumentRange& documents = rule.documents;
  order.resize(rule.epochs * documents.size());
  for (size_t i = 0; i < order.size(); ++i)
    order[i] = static_cast<int32_t>(documents.first + i % documents.size());
  const int64_t mixed = (rule.last_apart ? rule.epochs - 1 : rule.epochs) * documents.size();
  numpy_shuffle(std::span(order).first(mixed), rng);
  numpy_shuffle(std::span(order).subspan(mixed), rng);
}

// Sample i begins at token i * seq_length of the documents laid end to end; the last position is
// the end.
void locate_samples(const IndexedDataset& corpus, const OrderRule& rule, Arrays& made) {
  made.positions.reserve(rule.samples + 1);
  SamplePosition at;
  made.positions.push_back(at);
  for (int64_t i = 0; i < rule.samples; ++i) {
    int64_t ahead = rule.seq_length;
    int64_t rest = corpus.length(made.documents[at.entry]) - at.offset;
    while (ahead >= rest) {
      ahead -= rest;
      at = {at.entry + 1, 0};
      rest = corpus.length(made.documents[at.entry]);
    }
    at.offset += static_cast<int32_t>(ahead);
    made.positions.push_back(at);
  }
}

SampleOrder make_order(const IndexedDataset& corpus, const OrderRule& rule) {
  const auto made = std::make_shared<Arrays>();
  std::mt19937 rng(rule.seed);
  order_documents(rule, made->documents, rng);
  locate_samples(corpus, rule, *made);
  made->samples.resize(rule.samples);
  std::iota(made->samples.begin(), made->samples.end(), 0);
  numpy_shuffle(std::span(made->samples).first(rule.mixed_samples), rng);
  numpy_shuffle(std::span(made->samples).subspan(rule.mixed_samples), rng);
  return {made->documents, made->positions, made->samples, made};
}

// The arrays of a mapped order, one after the other. The file may be larger than memory, so parts
// that have been looked at are forgotten.
class ArrayReader {
 public:
  explicit ArrayReader(const MappedFile& file) : file_(file), at_(sizeof(OrderHeader)) {}

  // Returns the next array. `is_valid` tells of each value whether it lies within the corpus.
  template <class T, class IsValid>
  std::span<const T> next(uint64_t count, const IsValid& is_valid) {
    constexpr size_t kAtOnce = 1 << 20;
    const std::span values(reinterpret_cast<const T*>(file_.bytes().data() + at_), count);
    for (size_t begin = 0; begin < count; begin += kAtOnce) {
      const auto some = values.subspan(begin, std::min<size_t>(kAtOnce, count - begin));
      crc_ = crc32(std::as_bytes(some), crc_);
      valid_ &= std::ranges::all_of(some, is_valid);
      file_.forget();
    }
    at_ += values.size_bytes();
    return values;
  }
  bool is_whole(uint32_t crc) const { return valid_ && crc == crc_; }

 private:
  const MappedFile& file_;
  uint64_t at_;
  uint32_t crc_ = 0;
  bool valid_ = true;
};

// Returns the order in a file, if it is the one wanted and undamaged.
std::optional<SampleOrder> map_order(const fs::path& path, const OrderHeader& wanted) try {
  if (!fs::is_regular_file(path)) return std::nullopt;
  const auto mapped = std::make_shared<const MappedFile>(path);
  if (mapped->bytes().size() != wanted.bytes()) return std::nullopt;
  OrderHeader header;
  std::memcpy(&header, mapped->bytes().data(), sizeof header);
  const uint32_t crc = std::exchange(header.crc, 0);
  if (std::memcmp(&header, &wanted, sizeof header) != 0) return std::nullopt;
  ArrayReader arrays(*mapped);
  SampleOrder order{.storage = mapped};
  order.documents = arrays.next<int32_t>(wanted.documents(), [&](int32_t document) {
    return document >= wanted.first && document < wanted.last;
  });
  const auto entries = static_cast<int64_t>(wanted.documents());
  order.positions = arrays.next<SamplePosition>(wanted.samples + 1, [&](const SamplePosition& at) {
    return at.entry >= 0 && at.entry < entries && at.offset >= 0;
  });
  order.samples = arrays.next<uint32_t>(wanted.samples,
                                        [&](uint32_t sample) { return sample < wanted.samples; });
  if (!arrays.is_whole(crc)) return std::nullopt;
  return order;
} catch (const std::exception&) {
  return std::nullopt;
}

// Whether there is no file, or one of ours.
bool may_replace_order(const fs::path& path) {
  if (!fs::exists(fs::symlink_status(path))) return true;
  if (!fs::is_regular_file(path)) return false;
  std::array<char, 8> magic{};
  std::ifstream(path, std::ios::binary).read(magic.data(), magic.size());
  return magic == kOrderMagic;
}

void write_order(const fs::path& path, OrderHeader header, const SampleOrder& order) {
  const std::array parts{std::as_bytes(order.documents), std::as_bytes(order.positions),
                         std::as_bytes(order.samples)};
  for (const auto& part : parts) header.crc = crc32(part, header.crc);
  NewFile file(path);
  std::ofstream out(file.path(), std::ios::binary);
  out.write(reinterpret_cast<const char*>(&header), sizeof header);
  for (const auto& part : parts)
    out.write(reinterpret_cast<const char*>(part.data()), std::ssize(part));
  if (!out.flush()) throw_system_error("write", file.path());
  file.publish();
}

// Keeps other processes, on the same machine, from making the same order.
class MakersLock {
 public:
  explicit MakersLock(const fs::path& path) : descriptor_(open_to_read(path)) {
    flock(descriptor_, LOCK_EX);  // without it, as on some network drives, all make it
  }
  ~MakersLock() { close(descriptor_); }
  MakersLock(const MakersLock&) = delete;
  MakersLock& operator=(const MakersLock&) = delete;

 private:
  int descriptor_;
};

}  // namespace

SampleOrder sample_order(const IndexedDataset& corpus, const OrderRule& rule,
                         const std::string& part) {
  if (rule.epochs * rule.documents.size() + rule.samples < kSmall) return make_order(corpus, rule);
  const fs::path path = corpus.prefix() + "." + part + "." + std::to_string(rule.seed) + ".order";
  const OrderHeader wanted = header_of(corpus, rule);
  if (auto found = map_order(path, wanted)) return *std::move(found);
  const MakersLock lock(corpus.prefix() + ".idx");
  if (auto found = map_order(path, wanted)) return *std::move(found);
  SampleOrder made = make_order(corpus, rule);
  try {
    if (may_replace_order(path)) write_order(path, wanted, made);
  } catch (const std::exception&) {  // a folder that is not ours, or a full disk
    return made;
  }
  if (auto found = map_order(path, wanted)) return *std::move(found);
  return made;
}

}  // namespace anymesh
