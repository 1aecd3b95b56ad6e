#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>

namespace anymesh {

// The structures of a zip file (PKWARE's APPNOTE.TXT, section 4.3), little-endian. Sizes cover the
// fixed parts only.
inline constexpr uint32_t kLocalHeader = 0x04034B50, kDescriptor = 0x08074B50,
                          kCentralHeader = 0x02014B50;
inline constexpr uint32_t kZip64End = 0x06064B50, kZip64Locator = 0x07064B50, kEnd = 0x06054B50;
inline constexpr uint64_t kLocalHeaderSize = 30, kCentralHeaderSize = 46, kZip64EndSize = 56,
                          kZip64LocatorSize = 20, kEndSize = 22;
inline constexpr uint32_t kIn64Bits = 0xFFFFFFFF;  // the value is in the zip64 extra field
inline constexpr uint16_t kZip64Extra = 1;
inline constexpr uint16_t kPaddingExtra = 0x4246;  // "FB": torch's, for alignment
inline constexpr uint16_t kFlagEncrypted = 1, kFlagDescriptor = 8, kFlagUtf8 = 0x800;

template <typename T>
T get_field(std::span<const std::byte> bytes, uint64_t offset) {
  T value;
  std::memcpy(&value, bytes.subspan(offset, sizeof value).data(), sizeof value);
  return value;
}

// Collects fields: Fields().u32(kEnd).u16(0)...
class Fields {
 public:
  Fields& u16(uint64_t v) { return add(static_cast<uint16_t>(v)); }
  Fields& u32(uint64_t v) { return add(static_cast<uint32_t>(v)); }
  Fields& u64(uint64_t v) { return add(v); }
  Fields& text(const std::string& v) {
    bytes_ += v;
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  template <typename T>
  Fields& add(T v) {
    bytes_.append(reinterpret_cast<const char*>(&v), sizeof v);
    return *this;
  }
  std::string bytes_;
};

}  // namespace anymesh
