#include "framework/format/io/write_files.h"

#include <fstream>
#include <numeric>

#include "framework/format/io/block_writer.h"
#include "framework/format/io/crc32.h"
#include "framework/format/torch_file/torch_file.h"
#include "framework/util/memory_sizes.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/fixtures.h"

namespace anymesh {
namespace {

TensorRecord numbered(int64_t count, DType dtype = DType::kFloat32) {
  std::vector<std::byte> bytes(static_cast<size_t>(count) * element_size(dtype));
  uint32_t state = 1;
  for (std::byte& byte : bytes) byte = static_cast<std::byte>((state = state * 1664525 + 1) >> 24);
  return {dtype, {count}, false, std::make_shared<OwnedBytes>(std::move(bytes))};
}

// Throws unless it is read by whole elements, as merged tensors do.
class Floats : public ByteSource {
 public:
  explicit Floats(BytesPtr bytes) : bytes_(std::move(bytes)) {}
  uint64_t size() const override { return bytes_->size(); }
  void read(uint64_t offset, std::span<std::byte> out) const override {
    if (offset % 4 != 0 || out.size() % 4 != 0) throw std::logic_error("cuts an element");
    bytes_->read(offset, out);
  }

 private:
  BytesPtr bytes_;
};

class Stream : public TempFolder {
 protected:
  // Values that are small, larger than a block, with several tensors, with none.
  std::vector<Value> values_ = {Value::dict({{"param", numbered(100)}}),
                                Value::dict({{"param", numbered(1'300'001)}}),
                                Value::dict({{"a", numbered(3 << 20, DType::kUInt8)},
                                             {"b", numbered(0)},
                                             {"c", numbered(2'100'003)},
                                             {"d", numbered(5)}}),
                                Value(7)};

  fs::path path(size_t i) const { return folder_ / (std::to_string(i) + ".pt"); }

  std::vector<StreamedFile> files() const {
    std::vector<StreamedFile> files;
    for (size_t i = 0; i < values_.size(); ++i)
      files.push_back(streamed_torch_file(path(i), values_[i]));
    return files;
  }

  std::vector<std::string> contents() const {
    std::vector<std::string> contents;
    for (size_t i = 0; i < values_.size(); ++i) contents.push_back(read_file(path(i)));
    return contents;
  }

  std::vector<std::string> expected() const {
    for (size_t i = 0; i < values_.size(); ++i) write_torch_file(path(i), values_[i], 1);
    const auto contents = this->contents();
    for (size_t i = 0; i < values_.size(); ++i) fs::remove(path(i));
    return contents;
  }
};

TEST_F(Stream, WritesTheSameFromAnyNumberOfThreads) {
  const auto expected = this->expected();
  for (const int threads : {1, 2, 8}) {
    const WriteResult result = write_files(files(), threads);
    EXPECT_EQ(contents(), expected) << threads;
    EXPECT_EQ(result.kept, 0u);
    EXPECT_EQ(result.bytes,
              std::accumulate(expected.begin(), expected.end(), uint64_t{0},
                              [](uint64_t n, const auto& s) { return n + s.size(); }));
    for (size_t i = 0; i < values_.size(); ++i) {
      EXPECT_EQ(result.crcs[i], crc32(std::as_bytes(std::span(expected[i]))));
      fs::remove(path(i));
    }
  }
}

TEST_F(Stream, MemoryDoesNotGrowWithTheNumberOfFiles) {
#ifdef ANYMESH_SANITIZE
  GTEST_SKIP() << "what is freed stays in quarantine";
#endif
  const Value value = Value::dict({{"param", numbered(480'000)}});  // just less than a block
  std::vector<StreamedFile> files;
  for (size_t i = 0; i < 100; ++i) files.push_back(streamed_torch_file(path(i), value));
  std::ofstream("/proc/self/clear_refs") << 5;  // resets the peak
  const int64_t before = peak_memory();
  write_files(files, 2);
  EXPECT_LT((peak_memory() - before) >> 20, 32);
}

TEST_F(Stream, WritesTheSameInParts) {
  const auto expected = this->expected();
  for (const size_t i : {1, 2}) {
    for (const int count : {1, 2, 3}) {
      std::vector<std::unique_ptr<SharedFile>> parts;  // of processes
      for (int part = 0; part < count; ++part)
        parts.push_back(std::make_unique<SharedFile>(streamed_torch_file(path(i), values_[i]),
                                                     FilePart{part, count}));
      std::vector<TensorExtent> all;
      for (const int part : {count - 1, 0, 1}) {  // any order
        if (part == count - 1 ? all.empty() : part < count) {
          SharedFile& file = *parts[static_cast<size_t>(part)];
          file.write(2);
          std::ranges::copy(file.written(), std::back_inserter(all));
        }
      }
      SharedFile& last = *parts.back();
      const std::vector<TensorExtent> some(all.begin() + 1, all.end());
      EXPECT_REFUSES(last.finish(some), "nobody wrote");
      last.finish(all);
      EXPECT_EQ(read_file(path(i)), expected[i]) << count;
      EXPECT_EQ(last.blocks().crc(), crc32(std::as_bytes(std::span(expected[i]))));
      fs::remove(path(i));
    }
  }
  EXPECT_EQ(parts_worth(100, 4), 1);
  EXPECT_EQ(parts_worth(30 << 20, 8), 3);
  EXPECT_EQ(parts_worth(1 << 30, 8), 8);
}

// Each part gets copies of the tensors that it reads, and only of those.
TEST_F(Stream, WritesReplacedTensors) {
  const Value others = map_tensors(values_[2], [](TensorRecord tensor) {
    tensor.bytes = std::make_shared<OwnedBytes>(std::vector<std::byte>(tensor.nbytes()));
    return tensor;
  });
  const auto expected = this->expected()[2];
  std::vector<TensorExtent> all;
  std::vector<size_t> replaced;
  SharedFile first(streamed_torch_file(path(2), others), {0, 2}),
      last(streamed_torch_file(path(2), others), {1, 2});
  for (SharedFile* part : {&first, &last}) {
    replaced.push_back(0);
    part->replace_tensors([&](const BytesPtr& tensor) {
      ++replaced.back();
      for (const auto& [name, value] : values_[2].entries())
        if (value.as_tensor().nbytes() == tensor->size()) return value.as_tensor().bytes;
      return tensor;
    });
    part->write(2);
    std::ranges::copy(part->written(), std::back_inserter(all));
  }
  last.finish(all);
  EXPECT_EQ(read_file(path(2)), expected);
  EXPECT_EQ(replaced, (std::vector<size_t>{2, 2}));  // of three tensors, both read the second
}

TEST_F(Stream, MendsWhatIsThere) {
  const auto expected = this->expected();
  write_files(files(), 4);
  write_file(path(0), expected[0].substr(0, 70));
  std::string damaged = expected[1];
  damaged[3 << 20] ^= 1;
  write_file(path(1), damaged + "more");
  fs::remove(path(3));
  const WriteResult result = write_files(files(), 4);
  EXPECT_EQ(contents(), expected);
  EXPECT_GE(result.kept, (2u << 20) + (8u << 20));  // all blocks but the damaged one
  EXPECT_LE(result.kept, result.bytes - (2u << 20));
}

TEST_F(Stream, CutsNoElement) {
  const TensorRecord tensor = numbered(1'500'000);
  FileLayout layout;
  layout.add("odd");
  layout.add(std::make_shared<Floats>(tensor.bytes));
  write_files({{folder_ / "f", layout}}, 3);
  const auto bytes = read_bytes(tensor);
  EXPECT_EQ(read_file(folder_ / "f"),
            "odd" + std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

TEST_F(Stream, SaysThatADiskIsFull) {
  const FileSizeLimit limit(3 << 20);
  EXPECT_EQ(message_of([&] { write_torch_file(path(1), values_[1]); }),
            "cannot set 5201343 bytes aside for " + path(1).string() + ": File too large");
}

TEST_F(Stream, SaysWhichFileCannotBeMade) {
  const auto missing = streamed_torch_file(folder_ / "absent" / "x.pt", values_[0]);
  EXPECT_REFUSES(write_files({missing}, 2), "absent/x.pt: No such file");
}

}  // namespace
}  // namespace anymesh
