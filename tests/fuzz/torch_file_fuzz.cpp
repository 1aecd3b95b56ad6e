// Fuzzes a whole file: the zip container, its records, the pickle and the tensors in it.
#include "framework/format/torch_file.h"
#include "tests/fuzz/target.h"

namespace anymesh {

void fuzz(std::span<const std::byte> input) {
  const ScratchFile file(".pt", input);
  try {
    const ZipReader zip(file.path());
    for (const auto& record : zip.records()) zip.read(record);
  } catch (const std::runtime_error& error) {
    require_name(error, file.path());
  }
  try {
    check_tensors(read_torch_file(file.path()));
  } catch (const std::runtime_error& error) {
    require_name(error, file.path());
  }
}

}  // namespace anymesh
