#include "framework/format/folder/manifest.h"

#include <algorithm>
#include <stdexcept>

#include "framework/format/io/byte_source.h"
#include "framework/format/io/crc32.h"
#include "framework/format/io/file_io.h"
#include "framework/format/layout/names.h"
#include "framework/format/torch_file/zip.h"
#include "framework/util/errors.h"
#include "framework/util/json.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using nlohmann::ordered_json;

constexpr std::string_view kFormat = "anymesh checkpoint";
constexpr uint64_t kMaxManifest = 64 << 20;  // some 500,000 files

// Whether the name is a path that stays inside the folder.
bool is_inside(const std::string& name) {
  const fs::path path = name;
  return !name.empty() && !path.is_absolute() && name.find('\0') == std::string::npos &&
         std::none_of(path.begin(), path.end(), [](const fs::path& part) {
           return part == "." || part == ".." || part.empty();
         });
}

uint64_t number_in(const Json& file, const char* key, uint64_t most) {
  const Json& number = file.at(key);
  if (!number.is_number_unsigned() || number.get<uint64_t>() > most)
    throw DamagedFile(std::string("'") + key + "' is " + number.dump());
  return number.get<uint64_t>();
}

// A manifest's last entry: the checksum of its text without that entry.
constexpr std::string_view kChecksum = ",\n \"crc32\": ", kEnd = "\n}\n";

uint32_t crc_of(std::string_view text) { return crc32(std::as_bytes(std::span(text))); }

// Throws if the text has a checksum, and another content.
void check_own_checksum(const std::string& text, const Json& json) {
  const size_t at = text.rfind(kChecksum);
  if (at == std::string::npos) return;  // from before it existed
  const uint32_t crc = crc_of(text.substr(0, at) + std::string(kEnd));
  if (number_in(json, "crc32", UINT32_MAX) != crc)
    throw DamagedFile("its own checksum is not that of its text");
}

// Returns "path: damage (written on host); ..." for the files where look(path, file) finds damage.
template <typename Look>
std::string damage_of(const fs::path& folder, const std::vector<Manifest::File>& files, Look look) {
  std::string text;
  for (const Manifest::File& file : files) {
    const fs::path path = folder / file.name;
    const std::string what = look(path, file);
    if (what.empty()) continue;
    text += (text.empty() ? "" : "; ") + printable(path.string(), 1000) + ": " + what +
            " (written on " + printable(file.host) + ")";
  }
  return text;
}

// Returns where the reader finds the damage in a torch file; empty if it finds none.
std::string first_damaged_record(const fs::path& path) {
  try {
    const ZipReader zip(path);
    for (const auto& record : zip.records()) zip.check(record);
    return "";
  } catch (const std::exception& error) {
    return std::string(": ") + error.what();
  }
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
  const std::string text = json_text(manifest, kManifestFile, 1) + "\n";  // ends with kEnd
  return text.substr(0, text.size() - kEnd.size()) + std::string(kChecksum) +
         std::to_string(crc_of(text)) + std::string(kEnd);
}

Manifest Manifest::from_json(const std::string& text, const std::string& where) {
  Manifest manifest;
  try {
    // Not an ordered_json, whose key lookup takes time linear in the number of keys.
    const Json json = Json::parse(bounded(text, where));
    if (json.at("format") != kFormat) throw DamagedFile("'format' is another");
    const auto version = json.at("version").get<int64_t>();
    if (version < 1) throw DamagedFile("is of version " + std::to_string(version));
    if (version > kVersion) {
      throw Unreadable(where + ": is of version " + std::to_string(version) +
                       ", this program knows 1 to " + std::to_string(kVersion));
    }
    check_own_checksum(text, json);
    json.at("tag").get_to(manifest.tag);
    json.at("iteration").get_to(manifest.iteration);
    for (const Json& file : json.at("files")) {
      manifest.files.push_back({file.at("name"), number_in(file, "bytes", UINT64_MAX),
                                static_cast<uint32_t>(number_in(file, "crc32", UINT32_MAX)),
                                file.at("host")});
      if (!is_inside(manifest.files.back().name))
        throw DamagedFile("lists '" + printable(manifest.files.back().name) +
                          "', which is no file in its folder");
    }
  } catch (const Unreadable&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw Unreadable(where + ": not enough memory to read it");
  } catch (const std::exception& error) {
    throw DamagedFile(where + ": not a manifest: " + printable(error.what(), 1000));
  }
  return manifest;
}

Manifest::File file_of_text(const std::string& name, std::string_view text) {
  return {name, text.size(), crc_of(text), host_name()};
}

std::optional<Manifest> read_manifest(const fs::path& folder, std::string_view file) {
  const fs::path path = folder / file;
  if (!fs::exists(path)) return std::nullopt;
  Manifest manifest = Manifest::from_json(read_text(path, kMaxManifest), path.string());
  if (manifest.files.empty())
    throw DamagedFile(path.string() + ": lists no files, expected the checkpoint's");
  return manifest;
}

std::optional<Manifest> readable_manifest(const fs::path& folder, std::string_view file) {
  try {
    if (fs::is_directory(fs::symlink_status(folder))) return read_manifest(folder, file);
  } catch (const std::runtime_error&) {
  }
  return std::nullopt;
}

std::string size_damage(const fs::path& folder, const std::vector<Manifest::File>& files) {
  return damage_of(folder, files, [](const fs::path& path, const Manifest::File& file) {
    std::error_code error;
    const uint64_t bytes = fs::file_size(path, error);
    if (error == std::errc::no_such_file_or_directory) return std::string("is missing");
    if (error) return error.message();
    if (bytes == file.bytes) return std::string();
    return "has " + std::to_string(bytes) + " bytes, " + std::to_string(file.bytes) +
           " were written";
  });
}

std::string checksum_damage(const fs::path& folder, const std::vector<Manifest::File>& files,
                            const std::function<void(uint64_t bytes)>& read) {
  return damage_of(folder, files, [&read](const fs::path& path, const Manifest::File& file) {
    if (!fs::is_regular_file(path)) return std::string();
    const anymesh::File there(path);
    const uint32_t crc = there.crc(0, there.size());
    if (read) read(there.size());
    if (crc == file.crc) return std::string();
    return "its checksum differs from the one written" + first_damaged_record(path);
  });
}

}  // namespace anymesh
