#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <map>

namespace anymesh {

// The files that an output is made from, as they were before the first was opened. An output that is
// made while somebody writes to them may be neither of the old ones nor of the new:
//
//   const SourceFiles sources(tag);
//   ...                                // open, read, write
//   sources.expect_unchanged();        // throws with the first that is another now, or gone
//
// A folder's files are those in it and in its zero/; an index's those beside it; else the file
// itself is meant.
class SourceFiles {
 public:
  explicit SourceFiles(const std::filesystem::path& path);
  void expect_unchanged() const;

 private:
  struct State {
    ino_t inode;
    uint64_t size;
    int64_t seconds, nanoseconds;  // of the last write
    bool operator==(const State&) const = default;
  };
  static bool look(const std::filesystem::path& file, State& state);
  void add(const std::filesystem::path& file);

  std::map<std::filesystem::path, State> files_;
};

}  // namespace anymesh
