// Fuzzes a pickle alone, with storages that always fit. A value that decodes must encode, and
// decode to the same, except for a value inside itself that is reached in several ways.
#include "framework/format/torch_file.h"
#include "tests/fuzz/target.h"

namespace anymesh {
namespace {

constexpr int64_t kMaxElements = 1 << 16;

Value decode(std::span<const std::byte> pickle) {
  const auto open = [](const std::string&, DType dtype, int64_t numel) -> BytesPtr {
    if (numel > kMaxElements) throw DamagedFile("a storage that is too large for this test");
    const auto count = static_cast<size_t>(numel < 0 ? 8 : numel);  // 8: as many as it likes
    return std::make_shared<OwnedBytes>(std::vector<std::byte>(count * element_size(dtype)));
  };
  return decode_pickle(pickle, open, "input");
}

}  // namespace

void fuzz(std::span<const std::byte> input) {
  const Value value = decode(input);
  check_tensors(value);
  int next = 0;
  const auto store = [&](const TensorRecord&) { return std::to_string(next++); };
  std::string again;
  try {
    again = encode_pickle(value, store);
  } catch (const DamagedFile& error) {
    require(std::string_view(error.what()).find("contains itself") != std::string_view::npos,
            "a value cannot be written");
    return;
  }
  // NaN is not equal to itself, so the texts are compared.
  next = 0;
  require(encode_pickle(decode(std::as_bytes(std::span(again))), store) == again,
          "a value changed when it was written and read");
}

}  // namespace anymesh
