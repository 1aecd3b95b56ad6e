// A step's timeline from a trace of --trace, in the Chrome trace format (framework/profile/report.h):
// the phases of each rank. Operators are left out.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace anymesh {

struct Phase {
  std::string name;           // "forward", "tp all_reduce"
  double begin = 0, end = 0;  // microseconds
  int depth = 0;              // phases around it
};

struct Trace {
  std::filesystem::path path;
  std::map<int, std::vector<Phase>> ranks;  // by begin, the outer one first
  double begin = 0, end = 0;
};

// Returns whether a file that begins like this may be a trace.
bool is_trace(std::string_view start);

// Throws DamagedFile, with the path, for what is no trace in JSON, for times that are no numbers
// from 0 on, for more than 4096 ranks or a million phases, and for a trace without phases.
Trace read_trace(const std::filesystem::path& path);

// Returns HTML: a row for each of the first 64 ranks, with a rectangle for each phase, and a key.
std::string timeline_html(const Trace& trace);

}  // namespace anymesh
