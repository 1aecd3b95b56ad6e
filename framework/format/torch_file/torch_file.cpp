#include "framework/format/torch_file/torch_file.h"

#include <algorithm>
#include <cinttypes>
#include <map>

#include "framework/format/torch_file/pickle.h"
#include "framework/format/torch_file/zip.h"
#include "framework/util/errors.h"
#include "framework/util/fnv.h"
#include "framework/util/format.h"
#include "framework/util/shell_word.h"

namespace anymesh {
namespace {

constexpr uint64_t kAllowance = 64 << 20, kRecordBytes = sizeof(ZipReader::Record) + 96;
constexpr std::string_view kPickleRecord = "data.pkl";

// Whether a file starts as torch.save's did before 1.6: a pickle of the long
// 0x1950a86a20f9469cfc6c.
bool is_legacy(const File& file) {
  constexpr unsigned char kMagic[] = {0x80, 0x02, 0x8A, 0x0A, 0x6C, 0xFC, 0x9C, 0x46, 0xF9, 0x20};
  std::vector<std::byte> start(sizeof kMagic);
  if (file.size() < start.size()) return false;
  file.read(0, start);
  return std::ranges::equal(start, std::as_bytes(std::span(kMagic)));
}

// The storages of a value's tensors. Tensors of the same memory and storage class share one.
class Storages {
 public:
  std::string key(const TensorRecord& tensor) {
    const uint64_t size = tensor.bytes ? tensor.bytes->size() : 0;
    if (size != tensor.nbytes()) {
      throw std::logic_error("a tensor of shape " + to_string(tensor.shape) + " has " +
                             std::to_string(size) + " bytes, expected " +
                             std::to_string(tensor.nbytes()));
    }
    const auto [known, is_new] =
        keys_.try_emplace({tensor.bytes.get(), storage_class(tensor.dtype)}, tensors_.size());
    if (is_new || !tensor.bytes) tensors_.push_back(tensor);
    return std::to_string(tensor.bytes ? known->second : tensors_.size() - 1);
  }
  const std::vector<TensorRecord>& tensors() const { return tensors_; }

 private:
  std::map<std::pair<const ByteSource*, std::string_view>, size_t> keys_;
  std::vector<TensorRecord> tensors_;
};

// Returns the forty digits by which torch tells files apart. Ours follow from the contents.
std::string serialization_id(const std::vector<ZipReader::Record>& records) {
  uint64_t names = kFnvStart, contents = kFnvStart;
  for (const auto& record : records) {
    names = fnv(record.name, names);
    contents = fnv_next(contents, record.crc);
  }
  return string_printf("%020" PRIu64 "%020" PRIu64, names, contents);
}

// Lays out a file called `stem`, with its records in torch's order.
FileLayout layout_of(const std::string& stem, const Value& value, std::span<const uint32_t> crcs) {
  ZipLayout zip(crcs);
  Storages storages;
  const std::string pickle =
      encode_pickle(value, [&](const TensorRecord& tensor) { return storages.key(tensor); });
  const std::string top = stem + "/";
  zip.add(top + std::string(kPickleRecord), pickle);
  zip.add(top + ".format_version", "1");
  zip.add(top + ".storage_alignment", "64");
  zip.add(top + "byteorder", "little");
  for (size_t i = 0; i < storages.tensors().size(); ++i)
    zip.add(top + "data/" + std::to_string(i), storages.tensors()[i].bytes);
  zip.add(top + "version", "3\n");
  zip.add(top + ".data/serialization_id", serialization_id(zip.records()));
  return zip.finish();
}

const ZipReader::Record& pickle_of(const ZipReader& zip) {
  const auto pickle = std::ranges::find_if(zip.records(), [](const auto& record) {
    const auto slash = record.name.find('/');
    return slash != std::string::npos && record.name.substr(slash + 1) == kPickleRecord;
  });
  if (pickle != zip.records().end()) return *pickle;
  throw DamagedFile(zip.file()->path().string() + ": has no data.pkl, so it is not of torch.save");
}

Value read_archive(const ZipReader& zip, RecordChecksums* checks) {
  const std::string file = zip.file()->path().string();
  const ZipReader::Record* pickle = &pickle_of(zip);
  const std::string top = pickle->name.substr(0, pickle->name.find('/') + 1);
  if (const auto* order = zip.find(top + "byteorder")) {
    constexpr std::string_view kLittle = "little";
    if (!std::ranges::equal(zip.read(*order), std::as_bytes(std::span(kLittle))))
      throw Unreadable(file + ": its byte order is not little-endian");
  }
  const auto open_storage = [&](const std::string& key, DType dtype, int64_t numel) {
    const std::string name = top + "data/" + key;
    const ZipReader::Record* record = zip.find(name);
    if (!record) throw DamagedFile("storage " + key + " has no record " + name);
    const uint64_t size = element_size(dtype);
    if (numel >= 0 &&
        (record->size % size != 0 || record->size / size != static_cast<uint64_t>(numel))) {
      throw DamagedFile("record " + name + " has " + std::to_string(record->size) +
                        " bytes, expected " + std::to_string(numel) + " elements of " +
                        std::string(dtype_name(dtype)));
    }
    return zip.open(*record, checks);
  };
  // The directory's records and the pickle's text have taken part of the memory allowed.
  uint64_t taken = pickle->size;
  for (const auto& record : zip.records()) taken += kRecordBytes + record.name.size();
  const uint64_t allowed = 2 * zip.file()->size() + kAllowance;
  return decode_pickle(zip.read(*pickle), open_storage, file, allowed - std::min(allowed, taken));
}

}  // namespace

ZipReader open_torch_file(const std::filesystem::path& path) {
  const auto file = std::make_shared<const File>(path);
  if (ZipReader::is_zip(*file)) return ZipReader(file);
  if (is_legacy(*file)) {
    const std::string file = shell_word(path.string());
    throw Unreadable(
        path.string() +
        ": is in the legacy format of torch.save before 1.6; convert it first: python3 "
        "-c 'import sys, torch; f = sys.argv[1]; torch.save(torch.load(f, "
        "map_location=\"cpu\", weights_only=True), f + \".new\")' " +
        file + " && mv " + shell_word(path.string() + ".new") + " " + file +
        "; DeepSpeed does without it if its configuration has "
        "\"checkpoint_serialization\": true");
  }
  throw DamagedFile(path.string() + ": is not a file of torch.save (no zip archive); it has " +
                    std::to_string(file->size()) + " bytes");
}

std::vector<std::byte> read_pickle(const ZipReader& zip) { return zip.read(pickle_of(zip)); }

Value read_torch_file(const ZipReader& zip, RecordChecksums* checks) {
  return naming_memory(zip.file()->path(), [&] { return read_archive(zip, checks); });
}

Value read_torch_file(const std::filesystem::path& path, RecordChecksums* checks) {
  return naming_memory(path, [&] { return read_archive(open_torch_file(path), checks); });
}

WriteResult write_torch_file(const std::filesystem::path& path, const Value& value, int threads) {
  return write_files({streamed_torch_file(path, value)}, threads);
}

StreamedFile streamed_torch_file(const std::filesystem::path& path, const Value& value) {
  const auto layout = [value, stem = path.stem().string()](std::span<const uint32_t> crcs) {
    return layout_of(stem, value, crcs);
  };
  return {path, layout({}), layout};
}

}  // namespace anymesh
