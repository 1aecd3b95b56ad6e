#include "tests/fuzz/target.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <vector>

#include "tests/support/tensors.h"

namespace anymesh {

void require(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "%s\n", what.c_str());
  std::abort();
}

void require_name(const std::exception& error, const std::filesystem::path& file) {
  const std::string what = error.what();
  require(what.find(std::filesystem::path(file).replace_extension()) != std::string::npos,
          "an error does not name its file: " + what);
}

void check_tensors(const Value& value) {
  uint64_t left = 16 << 20;
  for_each_tensor(value, [&left](const TensorRecord& tensor) {
    const uint64_t size = tensor.bytes->size();
    require(size == tensor.nbytes(), "a tensor has not the bytes that its shape says");
    if (size > left) return;
    left -= size;
    std::vector<std::byte> bytes(size);
    tensor.bytes->read(0, bytes);
  });
}

ScratchFile::ScratchFile(const std::string& extension, std::span<const std::byte> content) {
  const auto folder =
      std::filesystem::temp_directory_path() / ("anymesh_fuzz_" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  path_ = folder / ("input" + extension);
  std::ofstream out(path_, std::ios::binary);
  out.write(reinterpret_cast<const char*>(content.data()), std::ssize(content));
}

ScratchFile::~ScratchFile() {
  std::error_code ignored;
  std::filesystem::remove(path_, ignored);
  std::filesystem::remove(path_.parent_path(), ignored);  // once it is empty
}

}  // namespace anymesh

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    anymesh::fuzz(std::as_bytes(std::span(data, size)));
  } catch (const std::runtime_error&) {
  }
  return 0;
}
