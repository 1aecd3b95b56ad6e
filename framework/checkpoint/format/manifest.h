#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace anymesh {

// manifest.json of a tag folder: the files that make up the checkpoint, each with its size and
// checksum, and the machine that wrote it. The folder gets its name only after all of them are on
// disk, so a tag with a manifest is committed; docs/checkpoint-format.md has the protocol.
//
// Checkpoints of DeepSpeed, and ours from before there was one, have none.
struct Manifest {
  static constexpr int64_t kVersion = 1;

  struct File {
    std::string name;
    uint64_t bytes = 0;
    uint32_t crc = 0;  // CRC-32 of the whole file
    std::string host;
  };

  std::string tag;
  int64_t iteration = 0;
  std::vector<File> files;

  std::string to_json() const;
  // Throws std::runtime_error on text that is no manifest, or of a version that is not known here;
  // `where` names it.
  static Manifest from_json(const std::string& text, const std::string& where);
};

// Of a tag folder; nothing if it has none.
std::optional<Manifest> read_manifest(const std::filesystem::path& folder);

// What is missing or has another size, by the file system's word alone, a line each with the host
// that wrote it; empty: nothing.
std::string size_damage(const std::filesystem::path& folder, const Manifest& manifest);

// Reads those of the files that are there and that `mine(i)` picks, and compares their checksums. Of what
// differs a line each, as above.
std::string checksum_damage(const std::filesystem::path& folder, const Manifest& manifest,
                            const std::function<bool(size_t)>& mine);

}  // namespace anymesh
