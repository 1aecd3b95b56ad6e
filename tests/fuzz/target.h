// The interface of a fuzz target. Each target defines fuzz(). libFuzzer calls it with inputs that
// it makes up. replay.cpp, in the ordinary tests, calls it with those in crashes/.
#pragma once

#include <cstddef>
#include <exception>
#include <filesystem>
#include <span>
#include <string>

#include "framework/format/torch_file.h"

namespace anymesh {

// Reads one hostile input. A std::runtime_error is the reader's refusal and the right outcome; any
// other exception ends the process.
void fuzz(std::span<const std::byte> input);

// Ends the process unless `holds`.
void require(bool holds, const std::string& what);
void require_name(const std::exception& error, const std::filesystem::path& file);

// Reads the tensors in a value, up to 16 MiB together.
void check_tensors(const Value& value);

// The input as a file "input" + extension, in a folder of this process, until destruction.
class ScratchFile {
 public:
  ScratchFile(const std::string& extension, std::span<const std::byte> content);
  ~ScratchFile();
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace anymesh
