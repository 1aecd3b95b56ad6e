#pragma once

#include <cstdint>
#include <filesystem>
#include <ostream>
#include <string>
#include <vector>

#include "framework/checkpoint/format/value.h"

namespace anymesh {

// The subcommands of ckpt. Each writes its findings to `out` and returns the exit code: 0 when all
// is well, 1 when something differs or is broken. What is no checkpoint at all is thrown.
struct CkptOptions {
  int workers = 4;   // threads
  bool all = false;  // every line, however many
};

int inspect_checkpoint(const std::filesystem::path& path, const CkptOptions& options,
                       std::ostream& out);
int verify_checkpoint(const std::filesystem::path& path, const CkptOptions& options,
                      std::ostream& out);
int diff_checkpoints(const std::filesystem::path& a, const std::filesystem::path& b,
                     const CkptOptions& options, std::ostream& out);

// Bit by bit, a few MiB at a time, of tensors of the same dtype and number of elements.
struct TensorDifference {
  int64_t count = 0;   // of elements
  int64_t where = 0;   // the one that differs most
  double largest = 0;  // NaN where one of the two is
  int64_t numel = 0;
  std::string text() const;  // "differs in 1 of 64 elements, at most by 5.000e-01 at element 3"
};
TensorDifference compare_tensors(const TensorRecord& a, const TensorRecord& b);

// Whether all its bytes are 0.
bool is_zero(const TensorRecord& tensor);

// Every file in a folder and below it, sorted; or the file itself.
std::vector<std::filesystem::path> files_under(const std::filesystem::path& path);
bool is_torch_file(const std::filesystem::path& file);  // by its name

// At most `limit` of the lines, then how many more there are.
void print_lines(std::ostream& out, const std::vector<std::string>& lines, size_t limit,
                 const CkptOptions& options);

}  // namespace anymesh
