// Damages every file of the fixtures in many places. A reader must refuse it, by name, or read the
// original content, within twice the file's size plus 64 MiB of memory. (Bombs:
// hostile_bombs_test.) Files that differ in their tensors' values alone share the places: the first
// one is damaged in all, each other one in every seventh, by turns. The sanitizers have a quarter
// of the places, and fuzzers beside (tests/fuzz).

#include <algorithm>
#include <map>
#include <set>

#include "framework/format/torch_file/zip.h"
#include "tests/support/allocation_count.h"
#include "tests/support/fixtures.h"
#include "tests/support/tensors.h"

namespace anymesh {
namespace {

#ifdef ANYMESH_SANITIZE
constexpr uint64_t kTruncations = 16, kFlips = 64;
#else
constexpr uint64_t kTruncations = 64, kFlips = 256;
#endif
constexpr uint64_t kTurns = 7;

class HostileInput : public TempFolder {
 protected:
  // Returns whether `read` refused the file. If it did not, it has checked the values itself.
  template <class Read>
  bool refused(const fs::path& path, const Read& read) {
    const int64_t twice = 2 * static_cast<int64_t>(fs::file_size(path));
    const PeakAllocation peak;
    bool error = false;
    try {
      read(path);
    } catch (const std::runtime_error& refusal) {
      error = true;
      EXPECT_THAT(std::string_view(refusal.what()), HasSubstr(path.stem().string()))
          << refusal.what();
    }
    EXPECT_LE(peak.bytes(), twice + kAllowance);
    return error;
  }

  template <class Read>
  void truncate(const fs::path& from, const fs::path& path, const Read& read) {
    fs::copy_file(from, path);
    const uint64_t size = fs::file_size(from);
    for (uint64_t i = kTruncations; i-- > 0;) {
      if (!has_turn(i)) continue;
      fs::resize_file(path, size * i / kTruncations);
      EXPECT_TRUE(refused(path, read)) << from << " cut to " << fs::file_size(path);
    }
    fs::remove(path);
  }

  // Flips a bit at each place, one after the other. `must_fail` tells the places where a reader has
  // to notice.
  template <class Read, class MustFail>
  void flip(const fs::path& from, const fs::path& path, const std::vector<uint64_t>& places,
            const Read& read, const MustFail& must_fail) {
    fs::copy_file(from, path);
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    for (size_t i = 0; i < places.size(); ++i) {
      if (!has_turn(i)) continue;
      const auto at = static_cast<std::streamoff>(places[i]);
      const auto byte = static_cast<char>(file.seekg(at).get());
      file.seekp(at).put(static_cast<char>(byte ^ 1 << i % 8)).flush();
      const bool error = refused(path, read);
      EXPECT_TRUE(error || !must_fail(places[i])) << from << ": bit " << i % 8 << " of " << at;
      file.seekp(at).put(byte).flush();
    }
    file.close();
    fs::remove(path);
  }

  // Tells the damages of the next file of this form.
  void next_of(const std::string& form) { turn_ = seen_[form]++; }

 private:
  bool has_turn(uint64_t i) const { return turn_ == 0 || i % kTurns == turn_ % kTurns; }

  uint64_t turn_ = 0;  // 0: all damages
  std::map<std::string, uint64_t> seen_;
};

// Returns the part that two files share if they differ in their tensors' values alone.
std::string form_of(const fs::path& path) {
  const ZipReader zip(path);
  std::string form = std::to_string(fs::file_size(path));
  for (const auto& record : zip.records()) {
    form += ' ' + std::to_string(record.offset);
    if (!record.name.ends_with("data.pkl")) continue;
    for (const std::byte byte : zip.read(record)) form += static_cast<char>(byte);
  }
  return form;
}

// Returns places, a quarter each: anywhere, which is mostly in tensors; in the pickle; behind the
// last record, where the directory is; and between records.
std::vector<uint64_t> places_in(const fs::path& path) {
  const ZipReader zip(path);
  const uint64_t size = fs::file_size(path);
  std::vector<std::pair<uint64_t, uint64_t>> regions = {{0, size}};
  uint64_t end = 0;
  for (const auto& record : zip.records()) {
    if (record.name.ends_with("data.pkl")) regions.emplace_back(record.offset, record.size);
    end = std::max(end, record.offset + record.size);
  }
  regions.emplace_back(end, size - end);
  std::vector<uint64_t> places;
  for (const auto& [begin, length] : regions) {
    for (uint64_t i = 0; i < kFlips / 4; ++i) places.push_back(begin + length * i / (kFlips / 4));
  }
  for (uint64_t i = 0; places.size() < kFlips; ++i) {
    const auto& record = zip.records()[i % zip.records().size()];
    places.push_back(record.offset - 1 - i / zip.records().size() * 3 % 60);
  }
  return places;
}

TEST_F(HostileInput, TorchFiles) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(ANYMESH_UNPACKED)) {
    const fs::path& path = entry.path();  // nothing shows damage in files without checksums
    if (path.extension() == ".pt" && ZipReader(path).has_crcs()) files.push_back(path);
  }
  for (const fs::path& from : files) {
    const Value original = read_torch_file(from);
    const auto read = [&](const fs::path& path) {
      const Value value = read_torch_file(path);
      ASSERT_TRUE(value == original) << from;
    };
    const ZipReader zip(from);
    std::set<std::string> storages;  // an empty part of a DTensor keeps one that nobody reads
    map_tensors(original, [&](const TensorRecord& tensor) {
      for (const FileRange& range : tensor.bytes->places(0, tensor.bytes->size()))
        if (range.size > 0) storages.insert(range.record);
      return tensor;
    });
    const auto in_payload = [&](uint64_t at) {
      return std::ranges::any_of(zip.records(), [&](const ZipReader::Record& record) {
        const bool is_read = record.name.ends_with("/data.pkl") ||
                             record.name.ends_with("/byteorder") || storages.contains(record.name);
        return is_read && at >= record.offset && at < record.offset + record.size;
      });
    };
    next_of(form_of(from));
    truncate(from, folder_ / "damaged.pt", read);
    flip(from, folder_ / "damaged.pt", places_in(from), read, in_payload);
  }
  EXPECT_GT(files.size(), 1000u);
}

}  // namespace
}  // namespace anymesh
