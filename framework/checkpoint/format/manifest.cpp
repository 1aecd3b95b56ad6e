#include "framework/checkpoint/format/manifest.h"

#include <nlohmann/json.hpp>
#include <stdexcept>

#include "framework/checkpoint/format/byte_source.h"
#include "framework/checkpoint/format/crc32.h"
#include "framework/checkpoint/format/names.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr std::string_view kFormat = "anymesh checkpoint";
constexpr uint64_t kMaxManifest = 64 << 20;  // some 500,000 files
constexpr size_t kBlock = 1 << 20;

bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

std::string where_it_was(const Manifest::File& file) {
  return file.host.empty() ? "" : " (written on " + file.host + ")";
}

uint32_t crc_of(const File& file) {
  std::vector<std::byte> buffer(std::min<uint64_t>(file.size(), kBlock));
  uint32_t crc = 0;
  for (uint64_t at = 0; at < file.size(); at += buffer.size()) {
    const auto block = std::span(buffer).first(std::min<uint64_t>(kBlock, file.size() - at));
    file.read(at, block);
    crc = crc32(block, crc);
  }
  return crc;
}

}  // namespace

std::string Manifest::to_json() const {
  ordered_json list = ordered_json::array();
  for (const File& file : files) {
    list.push_back(
        {{"name", file.name}, {"bytes", file.bytes}, {"crc32", file.crc}, {"host", file.host}});
  }
  const ordered_json manifest = {{"format", kFormat},
                                 {"version", kVersion},
                                 {"tag", tag},
                                 {"iteration", iteration},
                                 {"files", std::move(list)}};
  return manifest.dump(1) + "\n";
}

Manifest Manifest::from_json(const std::string& text, const std::string& where) {
  Manifest manifest;
  try {
    const ordered_json json = ordered_json::parse(text);
    if (json.at("format") != kFormat) throw std::runtime_error("'format' is another");
    const auto version = json.at("version").get<int64_t>();
    if (version < 1 || version > kVersion) {
      throw std::runtime_error("is of version " + std::to_string(version) +
                               ", this program knows 1 to " + std::to_string(kVersion));
    }
    json.at("tag").get_to(manifest.tag);
    json.at("iteration").get_to(manifest.iteration);
    for (const ordered_json& file : json.at("files")) {
      manifest.files.push_back(
          {file.at("name"), file.at("bytes"), file.at("crc32"), file.at("host")});
      if (!is_plain_name(manifest.files.back().name))
        throw std::runtime_error("lists '" + manifest.files.back().name +
                                 "', which is no file's name");
    }
  } catch (const std::exception& error) {
    throw std::runtime_error(where + ": not a manifest: " + error.what());
  }
  return manifest;
}

std::optional<Manifest> read_manifest(const fs::path& folder) {
  const fs::path path = folder / kManifestFile;
  if (!fs::exists(path)) return std::nullopt;
  const File file(path);
  if (file.size() > kMaxManifest)
    throw std::runtime_error(path.string() + ": not a manifest: " + std::to_string(file.size()) +
                             " bytes");
  std::string text(file.size(), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  return Manifest::from_json(text, path.string());
}

std::string size_damage(const fs::path& folder, const Manifest& manifest) {
  std::string lines;
  for (const Manifest::File& file : manifest.files) {
    const fs::path path = folder / file.name;
    std::error_code error;
    const uint64_t bytes = fs::file_size(path, error);
    if (error) {
      lines += path.string() + ": " + error.message() + where_it_was(file) + "\n";
    } else if (bytes != file.bytes) {
      lines += path.string() + ": has " + std::to_string(bytes) + " bytes, " +
               std::to_string(file.bytes) + " were written" + where_it_was(file) + "\n";
    }
  }
  return lines;
}

std::string checksum_damage(const fs::path& folder, const Manifest& manifest,
                            const std::function<bool(size_t)>& mine) {
  std::string lines;
  for (size_t i = 0; i < manifest.files.size(); ++i) {
    const Manifest::File& written = manifest.files[i];
    if (!mine(i) || !fs::is_regular_file(folder / written.name)) continue;
    const File file(folder / written.name);
    if (crc_of(file) != written.crc) {
      lines += file.path().string() + ": its checksum is not that of what was written" +
               where_it_was(written) + "\n";
    }
  }
  return lines;
}

}  // namespace anymesh
