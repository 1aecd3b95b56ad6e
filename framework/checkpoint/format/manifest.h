#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "framework/checkpoint/format/names.h"

namespace anymesh {

// manifest.json of a tag folder or a universal one: the files that make up the checkpoint, each
// with its size and checksum, and the machine that wrote it. The folder gets its name only after
// all of them are on disk, so a tag with a manifest is committed; docs/checkpoint-format.md has the
// protocol.
//
// Checkpoints of DeepSpeed, and ours from before there was one, have none.
struct Manifest {
  static constexpr int64_t kVersion = 1;

  struct File {
    std::string name;  // from the folder on
    uint64_t bytes = 0;
    uint32_t crc = 0;  // CRC-32 of the whole file
    std::string host;
  };

  std::string tag;
  int64_t iteration = 0;
  std::vector<File> files;

  std::string to_json() const;
  // Throws std::runtime_error on text that is no manifest, and CannotRead on one of a later
  // version; `where` names it.
  static Manifest from_json(const std::string& text, const std::string& where);
};

// The entry of a file that holds `text`.
Manifest::File file_of_text(const std::string& name, std::string_view text);

// Reads a tag folder's; nothing if it has none. One that lists no files is refused. Other lists of ours
// have the same form under another name.
std::optional<Manifest> read_manifest(const std::filesystem::path& folder,
                                      std::string_view file = kManifestFile);

// What of the files is missing or has another size, by the file system's word alone: "path: has 5
// bytes, 7 were written (written on host); ...". Empty: nothing.
std::string size_damage(const std::filesystem::path& folder,
                        const std::vector<Manifest::File>& files);

// The same of those that are there and whose bytes do not have their checksum, with the first
// damaged record and its offset.
std::string checksum_damage(const std::filesystem::path& folder,
                            const std::vector<Manifest::File>& files);

}  // namespace anymesh
