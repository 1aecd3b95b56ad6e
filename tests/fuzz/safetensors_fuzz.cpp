// Fuzzes the header of a safetensors file, and the tensors that it describes.
#include "framework/format/torch_file.h"
#include "tests/fuzz/target.h"

namespace anymesh {

void fuzz(std::span<const std::byte> input) {
  const ScratchFile file(".safetensors", input);
  try {
    for (const auto& [name, tensor] : read_safetensors(file.path())) check_tensors(tensor);
  } catch (const std::runtime_error& error) {
    require_name(error, file.path());
  }
}

}  // namespace anymesh
