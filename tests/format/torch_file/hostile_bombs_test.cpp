// Files made to break a reader: sizes that lie, small data that stands for much, records in
// records.

#include "framework/format/io/crc32.h"
#include "framework/format/torch_file/zip.h"
#include "framework/format/torch_file/zip_format.h"
#include "tests/support/allocation_count.h"
#include "tests/support/fixtures.h"
#include "tests/support/tensors.h"

namespace anymesh {
namespace {

std::string repeated(const std::string& text, size_t count) {
  std::string result;
  result.reserve(text.size() * count);
  while (count-- > 0) result += text;
  return result;
}

std::string little_endian(uint64_t value, size_t bytes) {
  return {reinterpret_cast<const char*>(&value), bytes};
}

// A record as a zip archive has it, and its false claims about itself, if any.
struct Entry {
  std::string name, data;
  std::optional<uint64_t> size = {}, compressed = {}, header = {};  // in the directory
  uint16_t method = 0;
  bool descriptor = false;
  std::string extra = {};
};

struct Archive {
  std::string bytes, directory;
  uint64_t count = 0;

  void add(const Entry& entry) {
    const uint32_t crc = crc32(std::as_bytes(std::span(entry.data)));
    const uint64_t size = entry.data.size(), header = bytes.size();
    const uint16_t flags = entry.descriptor ? kFlagDescriptor : 0;
    const bool known = !entry.descriptor;  // else size and CRC follow the data
    Fields local;
    local.u32(kLocalHeader).u16(20).u16(flags).u16(entry.method).u32(0).u32(known ? crc : 0);
    local.u32(known ? size : 0).u32(known ? size : 0).u16(entry.name.size()).u16(0);
    bytes += local.text(entry.name).text(entry.data).bytes();
    if (entry.descriptor) bytes += Fields().u32(kDescriptor).u32(crc).u32(size).u32(size).bytes();
    Fields central;
    central.u32(kCentralHeader).u16(20).u16(20).u16(flags).u16(entry.method).u32(0).u32(crc);
    central.u32(entry.compressed.value_or(size)).u32(entry.size.value_or(size));
    central.u16(entry.name.size()).u16(entry.extra.size()).u16(0).u16(0).u16(0).u32(0);
    central.u32(entry.header.value_or(header)).text(entry.name).text(entry.extra);
    directory += central.bytes();
    ++count;
  }

  std::string end() const {
    Fields end;
    end.u32(kEnd).u16(0).u16(0).u16(count).u16(count).u32(directory.size()).u32(bytes.size());
    return bytes + directory + end.u16(0).bytes();
  }

  // Appends a zip64 end record that claims `wide_count` records and a directory at `wide_offset`.
  std::string end64(uint64_t wide_count, uint64_t wide_offset) const {
    const uint64_t at = bytes.size() + directory.size();
    Fields end;
    end.u32(kZip64End).u64(44).u16(45).u16(45).u32(0).u32(0).u64(wide_count).u64(wide_count);
    end.u64(directory.size()).u64(wide_offset);
    end.u32(kZip64Locator).u32(0).u64(at).u32(1);
    end.u32(kEnd).u16(0).u16(0).u16(0xFFFF).u16(0xFFFF).u32(kIn64Bits).u32(kIn64Bits).u16(0);
    return bytes + directory + end.bytes();
  }
};

std::string archive_of(const std::vector<Entry>& entries) {
  Archive archive;
  for (const Entry& entry : entries) archive.add(entry);
  return archive.end();
}

// Returns a tensor over storage "0" of `numel` floats. Sizes and strides are pickled tuples.
std::string tensor(uint64_t numel, const std::string& sizes, const std::string& strides) {
  return "ctorch._utils\n_rebuild_tensor_v2\n((U\x07storagectorch\nFloatStorage\nU\x01"
         "0U\x03"
         "cpu\x8A\x08" +
         little_endian(numel, 8) + std::string("tQK\0", 4) + sizes + strides +
         "\x89"
         "ccollections\nOrderedDict\n)RtR";
}

class Bombs : public TempFolder {
 protected:
  // Reads a file and its tensors. Returns the refusal, or "". Never takes more memory than is
  // allowed.
  std::string outcome(const std::string& content, Value* result = nullptr) {
    write_file(path_, content);
    const PeakAllocation peak;
    std::string message;
    {
      Value value;
      try {
        value = read_torch_file(path_);
        for_each_tensor(value, [](const TensorRecord& t) { read_bytes(t); });
        if (result) *result = value;
      } catch (const std::exception& error) {
        message = error.what();
        EXPECT_THAT(message, HasSubstr(path_.string()));
      }
    }
    const int64_t twice = 2 * static_cast<int64_t>(content.size());
    EXPECT_LE(peak.bytes(), twice + kAllowance) << message;
    return message;
  }

  std::string pickle(const std::string& body, Value* result = nullptr) {
    return outcome(archive_of({{"t/data.pkl", "\x80\x02" + body}, {"t/data/0", "12345678"}}),
                   result);
  }

  fs::path path_ = folder_ / "bomb.pt";
};

#define EXPECT_REFUSED(message, part) \
  EXPECT_THAT((message), HasSubstr(part)) << "got: " << (message)

// ---- pickles

TEST_F(Bombs, CodeIsKeptAsDataAndNeverRun) {
  const std::string marker = (folder_ / "executed").string(), command = "touch " + marker;
  const std::string text = "U" + little_endian(command.size(), 1) + command;
  for (const char* name : {"os\nsystem", "posix\nsystem", "builtins\neval", "subprocess\ncall"}) {
    Value value;
    EXPECT_EQ(pickle("c" + std::string(name) + "\n" + text + "\x85R.", &value), "");
    ASSERT_TRUE(value.is_object());
    EXPECT_TRUE(value.as_object().call);
    EXPECT_EQ(value.as_object().args.at(0), Value(command));
    write_torch_file(folder_ / "copy.pt", value);
    EXPECT_EQ(read_torch_file(folder_ / "copy.pt"), value);
  }
  EXPECT_FALSE(fs::exists(marker));
}

TEST_F(Bombs, SizesBeyondTheFile) {
  const std::string huge = little_endian(uint64_t{1} << 63, 8), most = std::string(8, '\xFF');
  for (const std::string& size : {huge, most}) {
    EXPECT_REFUSED(pickle("\x8D" + size + "abc."), "pickle at byte 11: wants");  // BINUNICODE8
    EXPECT_REFUSED(pickle("\x8E" + size + "abc."), "pickle at byte 11: wants");  // BINBYTES8
    EXPECT_REFUSED(pickle("\x95" + size + "N."), "pickle at byte 11: wants");    // FRAME
  }
  EXPECT_REFUSED(pickle("\x8B" + std::string(4, '\xFF') + "."), "wants 4294967295 bytes");  // LONG4
  EXPECT_REFUSED(pickle("\x8B" + little_endian(0x80000000, 4) + "."), "wants 2147483648 bytes");
  EXPECT_REFUSED(pickle("B" + std::string(4, '\xFF') + "."), "wants 4294967295 bytes");
  EXPECT_REFUSED(pickle("X" + std::string(4, '\xFF') + "."), "wants 4294967295 bytes");
}

TEST_F(Bombs, MemoIndices) {
  const std::string index = little_endian(0x80000000, 4);
  EXPECT_EQ(pickle("K\x07r" + index + "0j" + index + "."), "");
  EXPECT_REFUSED(pickle("j" + index + "."), "recalls 2147483648, which was never memoized");
}

TEST_F(Bombs, BillionLaughs) {
  std::string tuples = std::string(")q\0", 3);
  for (char i = 0; i < 100; ++i) tuples += std::string("h") + i + "h" + i + "\x86q" + char(i + 1);
  EXPECT_REFUSED(pickle("(" + tuples + "t."), "stands for more values than memory could hold");
  // Shared values must not be copied. A long text is not; a long tuple of arguments is, so it is
  // refused.
  const std::string text = "X" + little_endian(1 << 20, 4) + std::string(1 << 20, 'x');
  EXPECT_EQ(
      pickle("(" + text + std::string("q\0", 2) + repeated(std::string("h\0", 2), 4000) + "t."),
      "");
  EXPECT_EQ(pickle("(" + text + repeated("2", 4000) + "t."), "");
  EXPECT_REFUSED(pickle("(" + repeated("N", 100000) + std::string("tq\0", 3) +
                        repeated(std::string("cm\nf\nh\0R", 8), 4000) + "l."),
                 "bytes of memory");
}

TEST_F(Bombs, ManySmallValues) {
#ifdef ANYMESH_SANITIZE
  GTEST_SKIP() << "20 million opcodes take minutes";
#endif
  constexpr size_t kMany = 20'000'000;
  for (const std::string body : {"N", "]", ")", "}", "(", "K\x01", "\x8A\x09zzzzzzzzz"}) {
    EXPECT_REFUSED(pickle(repeated(body, kMany / body.size()) + "."), "bytes of memory") << body;
  }
  std::string put = "N", used = "N";  // memo entries that are never recalled are not kept
  for (uint64_t i = 0; i < kMany / 5; ++i) put += "r" + little_endian(i, 4);
  EXPECT_EQ(pickle(put + "."), "");
  for (uint64_t i = 0; i < kMany / 11; ++i)
    used += "r" + little_endian(i, 4) + "0j" + little_endian(i, 4);
  EXPECT_REFUSED(pickle(used + "."), "bytes of memory");
  EXPECT_REFUSED(pickle("]" + repeated("Na", kMany / 2) + "."), "bytes of memory");
  EXPECT_REFUSED(pickle("}(" + repeated("K\x01N", kMany / 3) + "u."), "bytes of memory");
  // A tensor of 140 bytes is worth its memory. One that three short opcodes call for is not.
  const std::string one = tensor(2, "K\x02\x85", "K\x01\x85");
  EXPECT_EQ(pickle("(" + repeated(one, 100000) + "t."), "");
  const size_t args = one.find('('), end = one.size() - 1;
  EXPECT_REFUSED(
      pickle("(" + one.substr(0, args) + std::string("q\0", 2) + one.substr(args, end - args) +
             "q\1R" + repeated(std::string("h\0h\1R", 5), 1'000'000) + "t."),
      "bytes of memory");
}

TEST_F(Bombs, DeepNesting) {
  for (const char* open : {"]", "(", "}K\x01"}) {
    const char close = *open == ']' ? 'a' : *open == '(' ? 't' : 's';
    const auto nested = [&](size_t depth) {
      return repeated(open, depth) + "N" + std::string(depth, close) + ".";
    };
    EXPECT_EQ(pickle(nested(150)), "") << open;
    EXPECT_REFUSED(pickle(nested(20000)), "nests deeper than 200") << open;
  }
  EXPECT_REFUSED(pickle(repeated("\x85", 10)), "empty stack");
  EXPECT_REFUSED(pickle("N" + repeated("\x85", 20000) + "."), "nests deeper than 200");
}

TEST_F(Bombs, TensorsLargerThanTheirStorage) {
  const std::string huge = "\x8A\x08" + little_endian(uint64_t{1} << 46, 8);
  EXPECT_EQ(pickle(tensor(2, "K\x02\x85", "K\x01\x85") + "."), "");
  EXPECT_EQ(pickle(tensor(2, "K\x07\x85", std::string("K\0\x85", 3)) + "."), "");  // expanded
  Value expanded;
  EXPECT_EQ(pickle(tensor(2, huge + "\x85", std::string("K\0\x85", 3)) + ".", &expanded), "");
  EXPECT_REFUSED(message_of([&] { expanded.as_tensor(); }), "expected a tensor");
  EXPECT_REFUSED(pickle(tensor(2, huge + "\x85", "K\x01\x85") + "."), "does not hold a tensor");
  EXPECT_REFUSED(pickle(tensor(2, "K\x02\x85", huge + "\x85") + "."), "beyond its storage");
  EXPECT_REFUSED(pickle(tensor(uint64_t{1} << 62, "K\x02\x85", "K\x01\x85") + "."),
                 "has 8 bytes, expected 4611686018427387904 elements");
  EXPECT_REFUSED(pickle(tensor(2, "(" + repeated("K\x01", 100) + "t", "K\x01\x85") + "."),
                 "at most 64 dimensions");
}

// ---- zip archives

const std::string kNone("\x80\x02N.", 4);

TEST_F(Bombs, DescriptorsAreRead) {
  EXPECT_EQ(outcome(archive_of({{.name = "t/data.pkl", .data = kNone, .descriptor = true},
                                {.name = "t/byteorder", .data = "little", .descriptor = true}})),
            "");
}

TEST_F(Bombs, RecordSizesThatLie) {
  const auto sized = [](uint64_t size, uint64_t compressed) {
    return archive_of(
        {{.name = "t/data.pkl", .data = kNone, .size = size, .compressed = compressed}});
  };
  EXPECT_REFUSED(outcome(sized(uint64_t{1} << 31, 4)), "stored, but with two sizes");
  EXPECT_REFUSED(outcome(sized(uint64_t{1} << 31, uint64_t{1} << 31)), "lies outside");
  EXPECT_REFUSED(outcome(sized(3, 3)), "is damaged");
  const auto deflated = Entry{.name = "t/data.pkl", .data = kNone, .size = 0xFFFFFFF0, .method = 8};
  EXPECT_REFUSED(outcome(archive_of({deflated})), "is compressed, which torch never does");
}

TEST_F(Bombs, Zip64FieldsThatLie) {
  const auto record = [](uint64_t size) {
    const std::string extra = Fields().u16(kZip64Extra).u16(16).u64(size).u64(size).bytes();
    return archive_of({{.name = "t/data.pkl",
                        .data = kNone,
                        .size = kIn64Bits,
                        .compressed = kIn64Bits,
                        .extra = extra}});
  };
  EXPECT_EQ(outcome(record(4)), "");
  for (const uint64_t size : {uint64_t{1} << 63, ~uint64_t{0}, uint64_t{1} << 40})
    EXPECT_REFUSED(outcome(record(size)), "lies outside");
  const std::string cut = Fields().u16(kZip64Extra).u16(4).u32(4).bytes();
  EXPECT_REFUSED(
      outcome(archive_of({{.name = "t/data.pkl", .data = kNone, .size = kIn64Bits, .extra = cut}})),
      "malformed zip64 field");
  Archive archive;
  archive.add({"t/data.pkl", kNone});
  const uint64_t begin = archive.bytes.size();
  EXPECT_EQ(outcome(archive.end64(1, begin)), "");
  EXPECT_REFUSED(outcome(archive.end64(uint64_t{1} << 63, begin)), "records, expected at most");
  EXPECT_REFUSED(outcome(archive.end64(2, begin)), "with 2 records, expected at most");
  EXPECT_REFUSED(outcome(archive.end64(0, begin)), "more than its records");
  EXPECT_REFUSED(outcome(archive.end64(1, ~uint64_t{0})), "the directory lies outside");
  std::string differing = archive.end64(1, begin);
  differing.replace(differing.size() - 14, 4, std::string("\2\0\2\0", 4));
  EXPECT_REFUSED(outcome(differing), "otherwise than the zip64 record");
}

TEST_F(Bombs, RecordsInRecords) {
  EXPECT_REFUSED(outcome(archive_of({{"t/data.pkl", kNone}, {"t/data.pkl", kNone}})),
                 "two records are called t/data.pkl");
  EXPECT_REFUSED(
      outcome(archive_of({{"t/data.pkl", kNone}, {.name = "t/version", .data = "3", .header = 0}})),
      "has another name");
  Archive inner;
  inner.add({"t/inner", "x"});
  Archive outer;
  outer.add({"t/outer", inner.bytes});
  outer.add({.name = "t/inner", .data = "x", .header = 30 + 7});  // behind the header of outer
  EXPECT_REFUSED(outcome(outer.end()), "offset 37: not a valid zip archive: records overlap");
}

TEST_F(Bombs, ManyRecords) {
  Archive archive;
  for (int i = 0; i < 200'000; ++i) archive.add({std::to_string(i), ""});
  EXPECT_REFUSED(outcome(archive.end64(archive.count, archive.bytes.size())),
                 "200000 records, expected at most 131072");
}

// ---- the records of torch around the pickle

TEST_F(Bombs, ByteOrderAndSerializationId) {
  EXPECT_EQ(outcome(archive_of({{"t/data.pkl", kNone}})), "");  // neither is there
  EXPECT_EQ(outcome(archive_of({{"t/data.pkl", kNone}, {"t/byteorder", "little"}})), "");
  for (const char* order : {"big", "", "little "}) {
    EXPECT_REFUSED(outcome(archive_of({{"t/data.pkl", kNone}, {"t/byteorder", order}})),
                   "not little-endian");
  }
}

// torch.save before 1.6 wrote pickles of a magic number, a protocol, the system, the object, the
// keys.
TEST_F(Bombs, LegacyFilesAreNamedAsSuch) {
  const std::string magic("\x80\x02\x8A\x0A\x6C\xFC\x9C\x46\xF9\x20\x6A\xA8\x50\x19.", 15);
  EXPECT_REFUSED(outcome(magic + "\x80\x02M\xE9\x03." + "\x80\x02}." + "\x80\x02]."),
                 "is in the legacy format of torch.save before 1.6");
}

}  // namespace
}  // namespace anymesh
