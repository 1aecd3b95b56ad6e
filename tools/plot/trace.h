// A step's timeline from a trace of --trace, in the Chrome trace format with an event a line
// (framework/profile/report.h): the phases of each rank. Operators and kernels are left out.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace anymesh {

struct Phase {
  std::string name;           // "forward", "tp all_reduce"
  double begin = 0, end = 0;  // microseconds
  int64_t micro_batch = -1;   // -1 = it is of none
};

using Trace = std::map<int, std::vector<Phase>>;  // by rank; by begin, the outer one first

// Returns whether a file that begins like this may be a trace.
bool is_trace(std::string_view start);

// Throws DamagedFile, with the path, for a file that is cut off or of another form, for times that
// are no numbers from 0 on, for more than 4096 ranks or a million phases, and for a trace without
// phases.
Trace read_trace(const std::filesystem::path& path);

}  // namespace anymesh
