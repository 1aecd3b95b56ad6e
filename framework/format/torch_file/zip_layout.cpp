#include <algorithm>
#include <stdexcept>

#include "framework/format/io/crc32.h"
#include "framework/format/torch_file/zip.h"
#include "framework/format/torch_file/zip_format.h"
#include "framework/util/errors.h"

namespace anymesh {
namespace {

constexpr uint64_t kAlignment = 64;
constexpr uint16_t kVersionStored = 0, kVersionZip64 = 45;

bool is_large(uint64_t value) { return value >= kIn64Bits; }
uint64_t clamp32(uint64_t value) { return is_large(value) ? kIn64Bits : value; }

}  // namespace

void ZipLayout::add(std::string name, std::string_view text) {
  begin(std::move(name), text.size());
  file_.add(text);
  end(crc32(std::as_bytes(std::span(text))));
}

void ZipLayout::add(std::string name, const BytesPtr& source) {
  if (!source || source->size() == 0) return add(std::move(name), "");
  begin(std::move(name), source->size());
  file_.add(source);
  end(crcs_.empty() ? 0 : crcs_.front());
  if (!crcs_.empty()) crcs_ = crcs_.subspan(1);
}

// Adds a header without sizes and CRC. They follow the data in a descriptor, as the CRC is known
// only then.
void ZipLayout::begin(std::string name, uint64_t size) {
  if (name.size() > UINT16_MAX)
    throw UserError("a record name of " + std::to_string(name.size()) + " bytes");
  const bool zip64 = is_large(size);
  std::string extra;
  if (zip64) extra = Fields().u16(kZip64Extra).u16(16).u64(0).u64(0).bytes();
  const uint64_t unpadded = file_.size + kLocalHeaderSize + name.size() + extra.size() + 4;
  const uint64_t padding = (kAlignment - unpadded % kAlignment) % kAlignment;
  extra += Fields().u16(kPaddingExtra).u16(padding).text(std::string(padding, 'Z')).bytes();
  const uint16_t flags = kFlagUtf8 | (size > 0 ? kFlagDescriptor : 0);
  Fields fields;
  fields.u32(kLocalHeader).u16(zip64 ? kVersionZip64 : kVersionStored).u16(flags).u16(0).u32(0);
  fields.u32(0).u32(zip64 ? kIn64Bits : 0).u32(zip64 ? kIn64Bits : 0);
  fields.u16(name.size()).u16(extra.size()).text(name).text(extra);
  headers_.push_back(file_.size);
  file_.add(fields.bytes());
  records_.push_back({std::move(name), file_.size, size, 0});
}

void ZipLayout::end(uint32_t crc) {
  ZipReader::Record& record = records_.back();
  record.crc = crc;
  if (record.size == 0) return;
  Fields fields;
  fields.u32(kDescriptor).u32(crc);
  if (is_large(record.size)) {
    fields.u64(record.size).u64(record.size);
  } else {
    fields.u32(record.size).u32(record.size);
  }
  file_.add(fields.bytes());
}

FileLayout ZipLayout::finish() {
  Fields fields;
  for (size_t i = 0; i < records_.size(); ++i) {
    const ZipReader::Record& record = records_[i];
    Fields large;
    if (is_large(record.size)) large.u64(record.size).u64(record.size);
    if (is_large(headers_[i])) large.u64(headers_[i]);
    std::string extra;
    if (!large.bytes().empty()) {
      extra = Fields().u16(kZip64Extra).u16(large.bytes().size()).text(large.bytes()).bytes();
    }
    const uint16_t version = extra.empty() ? kVersionStored : kVersionZip64;
    const uint16_t flags = kFlagUtf8 | (record.size > 0 ? kFlagDescriptor : 0);
    fields.u32(kCentralHeader).u16(version).u16(version).u16(flags).u16(0).u32(0).u32(record.crc);
    fields.u32(clamp32(record.size)).u32(clamp32(record.size));
    fields.u16(record.name.size()).u16(extra.size()).u16(0).u16(0).u16(0).u32(0);
    fields.u32(clamp32(headers_[i])).text(record.name).text(extra);
  }
  const uint64_t directory = file_.size, size = fields.bytes().size(), count = records_.size();
  fields.u32(kZip64End).u64(kZip64EndSize - 12).u16(kVersionZip64).u16(kVersionZip64).u32(0).u32(0);
  fields.u64(count).u64(count).u64(size).u64(directory);
  fields.u32(kZip64Locator).u32(0).u64(directory + size).u32(1);
  const uint64_t short_count = std::min<uint64_t>(count, UINT16_MAX);
  fields.u32(kEnd).u16(0).u16(0).u16(short_count).u16(short_count);
  fields.u32(clamp32(size)).u32(clamp32(directory)).u16(0);
  file_.add(fields.bytes());
  return std::move(file_);
}

}  // namespace anymesh
