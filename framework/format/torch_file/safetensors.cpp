#include "framework/format/torch_file/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>

#include "framework/format/io/file_io.h"
#include "framework/util/errors.h"
#include "framework/util/json.h"
#include "framework/util/printable.h"

namespace anymesh {
namespace {

// Not ordered_json, which searches for a key in time linear in the number of keys.
using Json = nlohmann::json;

constexpr uint64_t kMaxHeader = 100'000'000;  // the format's own limit

// Reads the header of one file.
class Reader {
 public:
  explicit Reader(const std::filesystem::path& path) : file_(std::make_shared<File>(path)) {}

  NamedTensors read() {
    const Json header = read_header();
    std::vector<std::pair<uint64_t, NamedTensors::value_type>> placed;
    for (const auto& [name, entry] : header.items()) {
      if (name == "__metadata__") continue;
      const auto [begin, end] = offsets(name, entry);
      placed.push_back({begin, {name, tensor(name, entry, begin, end)}});
    }
    std::ranges::stable_sort(placed, [](const auto& a, const auto& b) {
      return std::pair(a.first, a.second.second.nbytes()) <
             std::pair(b.first, b.second.second.nbytes());
    });
    NamedTensors tensors;
    uint64_t at = 0;
    for (auto& [begin, tensor] : placed) {
      if (begin != at)
        fail("data offset " + std::to_string(begin),
             "tensors end to end, the next at " + std::to_string(at));
      at += tensor.second.nbytes();
      tensors.push_back(std::move(tensor));
    }
    if (at != file_->size() - data_)
      fail(std::to_string(at) + " bytes of tensors",
           std::to_string(file_->size() - data_) + ", up to the end of the file");
    return tensors;
  }

 private:
  Json read_header() {
    std::array<std::byte, 8> prefix;
    if (file_->size() < prefix.size()) fail(std::to_string(file_->size()) + " bytes", "a header");
    file_->read(0, prefix);
    static_assert(std::endian::native == std::endian::little);
    const auto length = std::bit_cast<uint64_t>(prefix);
    if (length > std::min(kMaxHeader, file_->size() - prefix.size()))
      fail("a header of " + std::to_string(length) + " bytes at offset 0",
           "at most the rest of the file");
    std::string text(length, '\0');
    file_->read(prefix.size(), std::as_writable_bytes(std::span(text)));
    data_ = prefix.size() + length;
    Json header = Json::parse(bounded(std::move(text), file_->path()), nullptr, false);
    if (!header.is_object()) fail("a header that is no JSON object, at offset 8", "one");
    return header;
  }

  std::pair<uint64_t, uint64_t> offsets(const std::string& name, const Json& entry) const {
    const auto found = entry.is_object() ? entry.find("data_offsets") : entry.end();
    if (!entry.is_object() || found == entry.end() || !found->is_array() || found->size() != 2 ||
        !(*found)[0].is_number_unsigned() || !(*found)[1].is_number_unsigned())
      fail(name + " without data_offsets", "two offsets");
    const auto begin = (*found)[0].get<uint64_t>(), end = (*found)[1].get<uint64_t>();
    if (begin > end || end > file_->size() - data_)
      fail(name + " at [" + std::to_string(begin) + ", " + std::to_string(end) + ")",
           "a range of the file's " + std::to_string(file_->size() - data_) + " bytes of data");
    return {begin, end};
  }

  TensorRecord tensor(const std::string& name, const Json& entry, uint64_t begin,
                      uint64_t end) const {
    const auto dtype = entry.find("dtype"), shape = entry.find("shape");
    const bool named = dtype != entry.end() && dtype->is_string();
    const auto known = named ? dtype_of_safetensors_name(dtype->get<std::string>()) : std::nullopt;
    if (named && !known)
      throw Unreadable(file_->path().string() + ": safetensors: " + printable(name) +
                       " is of dtype " + printable(dtype->dump()) + ", which is not read");
    if (!known)
      fail(name + " of dtype " + (dtype == entry.end() ? "none" : dtype->dump()),
           "F32 or another of a checkpoint");
    if (shape == entry.end() || !shape->is_array()) fail(name + " without a shape", "one");
    TensorRecord record{.dtype = *known};
    // As in numel(), an empty tensor's other sizes must not overflow either.
    auto bytes = static_cast<int64_t>(element_size(record.dtype));
    bool empty = false;
    for (const Json& size : *shape) {
      if (!size.is_number_unsigned() || size.get<uint64_t>() > INT64_MAX)
        fail(name + " of shape " + shape->dump(), "sizes");
      record.shape.push_back(size.get<int64_t>());
      empty |= record.shape.back() == 0;
      if (__builtin_mul_overflow(bytes, std::max<int64_t>(record.shape.back(), 1), &bytes))
        fail(name + " of shape " + shape->dump(), "one that fits its data");
    }
    const uint64_t expected = empty ? 0 : static_cast<uint64_t>(bytes);
    if (expected != end - begin)
      fail(name + " of shape " + shape->dump() + ", " + std::to_string(end - begin) + " bytes",
           std::to_string(expected));
    record.bytes = std::make_shared<SubRange>(file_, data_ + begin, expected);
    return record;
  }

  [[noreturn]] void fail(const std::string& found, const std::string& expected) const {
    throw DamagedFile(file_->path().string() + ": safetensors: found " + printable(found, 400) +
                      ", expected " + expected);
  }

  std::shared_ptr<const File> file_;
  uint64_t data_ = 0;  // the tensors' offset in the file
};

}  // namespace

NamedTensors read_safetensors(const std::filesystem::path& path) {
  return naming_memory(path, [&] { return Reader(path).read(); });
}

StreamedFile streamed_safetensors(const std::filesystem::path& path, const NamedTensors& tensors) {
  nlohmann::ordered_json header = {{"__metadata__", {{"format", "pt"}}}};
  uint64_t at = 0;
  for (const auto& [name, tensor] : tensors) {
    if (safetensors_name(tensor.dtype).empty())
      throw UserError(path.string() + ": " + printable(name) + " is of " +
                      std::string(dtype_name(tensor.dtype)) +
                      ", which safetensors do not have; a .bin file has");
    header[name] = {{"dtype", safetensors_name(tensor.dtype)},
                    {"shape", tensor.shape},
                    {"data_offsets", {at, at + tensor.nbytes()}}};
    at += tensor.nbytes();
  }
  std::string text = json_text(header, path);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const auto length = std::bit_cast<std::array<char, 8>>(uint64_t{text.size()});
  FileLayout layout;
  layout.add(std::string_view(length.data(), length.size()));
  layout.add(text);
  for (const auto& [name, tensor] : tensors)
    if (tensor.nbytes() > 0) layout.add(tensor.bytes);
  return {path, std::move(layout)};
}

uint64_t write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors) {
  return write_files({streamed_safetensors(path, tensors)}, 1).bytes;
}

}  // namespace anymesh
