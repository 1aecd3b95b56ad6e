#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <map>

namespace anymesh {

// The state of an output's source files before the first was opened. If somebody writes to them in
// the meantime, the output may mix old and new contents:
//
//   const SourceFiles sources(tag);
//   ...                                // open, read, write
//   sources.expect_unchanged();        // throws, naming the first file changed or removed
//
// For a folder, these are the files in it, below its zero/, and in folders of DCP in it. For an
// index, they are the files of its folder. Any other path is the one file itself.
class SourceFiles {
 public:
  explicit SourceFiles(const std::filesystem::path& path);
  void expect_unchanged() const;

 private:
  struct State {
    ino_t inode;
    uint64_t size;
    int64_t seconds, nanoseconds;  // time of the last write
    bool operator==(const State&) const = default;
  };
  static bool look(const std::filesystem::path& file, State& state);
  void add(const std::filesystem::path& file);

  std::map<std::filesystem::path, State> files_;
};

}  // namespace anymesh
