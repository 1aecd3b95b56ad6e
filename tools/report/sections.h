// The sections of a report. Each is HTML: what the folder has on its subject, or one line that says
// which flag would give it.
#pragma once

#include <string>
#include <vector>

#include "tools/report/run_folder.h"

namespace anymesh {

std::string problems_section(const RunFolder& folder);  // empty without problems
std::string runs_section(const RunFolder& folder);
std::string loss_section(const RunFolder& folder);
std::string mesh_section(const RunFolder& folder);
std::string memory_section(const RunFolder& folder);
std::string timeline_section(const RunFolder& folder);
std::string communication_section(const RunFolder& folder);
std::string checkpoints_section(const RunFolder& folder);
std::string flags_section(const RunFolder& folder);

// Returns a run's name in the colour that its loss curve has. `run` is its place in the folder.
std::string run_heading(const RunFolder& folder, size_t run);
// Returns a table's header: `first`, and the runs of these places.
std::vector<std::string> run_columns(const std::string& first, const RunFolder& folder,
                                     const std::vector<size_t>& runs);

// Returns the places of the runs that have something.
template <class Has>
std::vector<size_t> runs_with(const RunFolder& folder, Has has) {
  std::vector<size_t> places;
  for (size_t i = 0; i < folder.runs.size(); ++i)
    if (has(folder.runs[i])) places.push_back(i);
  return places;
}

}  // namespace anymesh
