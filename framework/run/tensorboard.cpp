#include "framework/run/tensorboard.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <stdexcept>

#include "framework/format/io.h"

namespace anymesh {
namespace {

static_assert(std::endian::native == std::endian::little);

template <class T>
std::string raw_bytes(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes.push_back(static_cast<char>(value | 0x80));
  bytes.push_back(static_cast<char>(value));
  return bytes;
}

// A protocol buffer field: its number and wire type, then the value. A message is a sequence of
// fields.
std::string key(int number, int wire_type) {
  return varint(static_cast<uint64_t>(number << 3 | wire_type));
}
std::string field(int number, int64_t value) {
  return key(number, 0) + varint(static_cast<uint64_t>(value));
}
std::string field(int number, double value) { return key(number, 1) + raw_bytes(value); }
std::string field(int number, const std::string& text) {
  return key(number, 2) + varint(text.size()) + text;
}
std::string field(int number, float value) { return key(number, 5) + raw_bytes(value); }

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Masks the CRC as TFRecord does, because the CRC of text that ends in its own CRC is always the
// same.
uint32_t masked_crc(const std::string& text) {
  return std::rotr(crc32c(std::as_bytes(std::span(text))), 15) + 0xa282ead8;
}

std::string record(const std::string& data) {
  const std::string length = raw_bytes(uint64_t{data.size()});
  return length + raw_bytes(masked_crc(length)) + data + raw_bytes(masked_crc(data));
}

}  // namespace

TensorBoardWriter::TensorBoardWriter(const std::filesystem::path& folder, int64_t first_step) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw std::runtime_error("cannot create " + folder.string() + ": " + error.message());
  // Readers take the files in name order.
  path_ = folder / ("events.out.tfevents." + std::to_string(now()) + "." + host_name() + "." +
                    std::to_string(getpid()));
  descriptor_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor_ < 0) throw_system_error("create", path_);
  constexpr int64_t kStart = 1;
  if (!append(field(1, now()) + field(2, int64_t{0}) + field(3, "brain.Event:2")) ||
      !append(field(1, now()) + field(2, first_step) + field(7, field(1, kStart))))
    throw_system_error("write to", path_);
}

TensorBoardWriter::~TensorBoardWriter() { close(descriptor_); }

bool TensorBoardWriter::add(int64_t step, const std::vector<Scalar>& scalars) {
  std::string summary;
  for (const auto& [tag, value] : scalars)
    summary += field(1, field(1, tag) + field(2, static_cast<float>(value)));
  return append(field(1, now()) + field(2, step) + field(5, summary));
}

bool TensorBoardWriter::append(const std::string& event) {
  const std::string bytes = record(event);
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t n = pwrite(descriptor_, bytes.data() + done, bytes.size() - done,
                             size_ + static_cast<int64_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      const int reason = errno;
      // Removes the partial record, because a reader would wait for its rest. If this fails, the
      // next record overwrites it.
      [[maybe_unused]] const int cut = ftruncate(descriptor_, size_);
      errno = reason;
      return false;
    }
    done += static_cast<size_t>(n);
  }
  size_ += static_cast<int64_t>(bytes.size());
  return true;
}

uint32_t crc32c(std::span<const std::byte> bytes) {
  static constexpr auto kTable = [] {
    std::array<uint32_t, 256> table{};
    for (uint32_t i = 0; i < 256; ++i) {
      table[i] = i;
      for (int bit = 0; bit < 8; ++bit) table[i] = table[i] >> 1 ^ (table[i] & 1 ? 0x82f63b78 : 0);
    }
    return table;
  }();
  uint32_t crc = ~0u;
  for (const std::byte b : bytes) crc = crc >> 8 ^ kTable[(crc ^ static_cast<uint8_t>(b)) & 0xff];
  return ~crc;
}

}  // namespace anymesh
