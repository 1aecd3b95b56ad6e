#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tools/report/run_folder.h"

namespace anymesh {

// Returns the page for the runs of `folders`. An empty title stands for their names.
std::string report_page(const std::string& title, const std::vector<std::filesystem::path>& folders,
                        const RunFolder& folder);

}  // namespace anymesh
