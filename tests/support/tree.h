#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "framework/util/input_file.h"

namespace anymesh {

// The contents of a folder by their names in it. A link has its target, and a folder has nothing.
using Tree = std::map<std::string, std::string>;

inline Tree tree(const std::filesystem::path& folder) {
  Tree entries;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    const std::string name = std::filesystem::relative(entry.path(), folder);
    entries[name] = entry.is_symlink()
                        ? "-> " + std::filesystem::read_symlink(entry.path()).string()
                    : entry.is_regular_file() ? read_file(entry.path())
                                              : "";
  }
  return entries;
}

}  // namespace anymesh
