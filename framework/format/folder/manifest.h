#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "framework/format/layout/names.h"

namespace anymesh {

// manifest.json of a tag folder or a universal folder. It lists the checkpoint's files, each with
// its size, its checksum and the machine that wrote it. The folder gets its name only after all
// files are on disk, so a tag with a manifest is committed. docs/checkpoint-format.md describes the
// protocol.
//
// DeepSpeed's checkpoints have no manifest, nor do our own from before it existed.
struct Manifest {
  static constexpr int64_t kVersion = 1;

  struct File {
    std::string name;  // relative to the folder
    uint64_t bytes = 0;
    uint32_t crc = 0;  // CRC-32 of the whole file
    std::string host;
  };

  std::string tag;
  int64_t iteration = 0;
  std::vector<File> files;

  std::string to_json() const;
  // Throws std::runtime_error on text that is not a manifest, and Unreadable on a later version.
  // `where` names the file in messages.
  static Manifest from_json(const std::string& text, const std::string& where);
};

// Returns the entry for a file that holds `text`.
Manifest::File file_of_text(const std::string& name, std::string_view text);

// Reads a folder's manifest; returns nullopt if it has none. Throws if the manifest lists no files.
// Our other lists of files have the same form under another name.
std::optional<Manifest> read_manifest(const std::filesystem::path& folder,
                                      std::string_view file = kManifestFile);
// The same, but a manifest that cannot be read counts as none. Does not follow a link to a folder.
std::optional<Manifest> readable_manifest(const std::filesystem::path& folder,
                                          std::string_view file = kManifestFile);

// Returns the files that are missing or have another size, by file metadata alone: "path: has 5
// bytes, 7 were written (written on host); ...". Empty if there are none.
std::string size_damage(const std::filesystem::path& folder,
                        const std::vector<Manifest::File>& files);

// Returns, in the same form, the files that are there but do not match their checksum, with the
// first damaged record and its offset. Tells `read`, if given, the size of each file that is read.
std::string checksum_damage(const std::filesystem::path& folder,
                            const std::vector<Manifest::File>& files,
                            const std::function<void(uint64_t bytes)>& read = {});

}  // namespace anymesh
