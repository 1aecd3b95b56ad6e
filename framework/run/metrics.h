#pragma once

#include <string>
#include <utility>
#include <vector>

#include "framework/comm/process_grid.h"

namespace anymesh {

// Numbers by name, as {{"accuracy", 0.93}}. One that is not known may be NaN.
using Metrics = std::vector<std::pair<std::string, double>>;

// Returns on all ranks the mean over the dp ranks of the last stage's metrics. So a metric of a
// rank's own samples becomes that of all samples, and one that is the same on all ranks stays as it
// is. The other stages' metrics are ignored. Throws CollectiveError, which begins with `what`, if
// the last stage's ranks differ in the names. Collective.
Metrics mean_of_metrics(const ProcessGrid& grid, const Metrics& mine, const std::string& what);

// Returns `metrics` in the order of `names`. Throws CollectiveError if other names than these are
// there. All ranks have the same metrics.
Metrics in_order(const Metrics& metrics, const std::vector<std::string>& names,
                 const std::string& what);

// Throws std::logic_error unless each name can be a column of a CSV beside `taken`, once.
void check_names(const std::vector<std::string>& names, const std::vector<std::string>& taken);

}  // namespace anymesh
