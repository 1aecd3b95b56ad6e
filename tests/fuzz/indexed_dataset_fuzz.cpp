// Fuzzes an .idx file over 64 KiB of tokens, and reads every sequence.
#include "framework/data/indexed_dataset.h"
#include "tests/fuzz/target.h"

namespace anymesh {

void fuzz(std::span<const std::byte> input) {
  const std::vector<std::byte> zeros(1 << 16);
  const ScratchFile index(".idx", input), tokens(".bin", zeros);
  try {
    const IndexedDataset data(index.path().parent_path() / index.path().stem());
    for (int64_t i = 0; i < data.size(); ++i) {
      std::vector<int64_t> sequence(static_cast<size_t>(data.length(i)));
      data.read(i, 0, sequence);
    }
  } catch (const std::runtime_error& error) {
    require_name(error, index.path());
  }
}

}  // namespace anymesh
