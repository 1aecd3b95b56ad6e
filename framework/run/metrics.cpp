#include "framework/run/metrics.h"

#include <ATen/Functions.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <stdexcept>

#include "framework/comm/agreement.h"
#include "framework/run/launch.h"
#include "framework/util/format.h"

namespace anymesh {
namespace {

std::vector<std::string> names_of(const Metrics& metrics) {
  std::vector<std::string> names;
  for (const auto& [name, value] : metrics) names.push_back(name);
  return names;
}

}  // namespace

Metrics mean_of_metrics(const ProcessGrid& grid, const Metrics& mine, const std::string& what) {
  const std::vector<std::string> own = grid.is_last_stage() ? names_of(mine) : names_of({});
  check_names(own, {});
  const std::vector<std::string> names = gather_lines(*grid.pp, own);
  check_same(*grid.world, {{"the metrics of " + what, joined(names)}});
  torch::Tensor values = torch::zeros({std::ssize(names)}, torch::kDouble);
  double* value = values.mutable_data_ptr<double>();
  for (size_t i = 0; i < own.size(); ++i) value[i] = mine[i].second;
  grid.dp->all_reduce(values);
  grid.pp->broadcast(values, grid.topology.pp_size - 1);
  Metrics mean;
  for (size_t i = 0; i < names.size(); ++i)
    mean.emplace_back(names[i], value[i] / grid.topology.dp_size);
  return mean;
}

Metrics in_order(const Metrics& metrics, const std::vector<std::string>& names,
                 const std::string& what) {
  Metrics ordered;
  for (const std::string& name : names) {
    const auto found = std::ranges::find(metrics, name, &Metrics::value_type::first);
    if (found != metrics.end()) ordered.push_back(*found);
  }
  if (ordered.size() != names.size() || metrics.size() != names.size())
    throw CollectiveError(c10::str(what, " gave the metrics \"", joined(names_of(metrics)),
                                   "\", expected \"", joined(names),
                                   "\" (TrainingProgram::metrics)"));
  return ordered;
}

void check_names(const std::vector<std::string>& names, const std::vector<std::string>& taken) {
  for (auto name = names.begin(); name != names.end(); ++name)
    if (name->empty() || name->find_first_of(",\"\r\n") != name->npos ||
        std::find(names.begin(), name, *name) != name ||
        std::ranges::find(taken, *name) != taken.end())
      throw std::logic_error("the metric \"" + *name +
                             "\": expected a name without commas, quotes and line breaks that no "
                             "other metric and no column of --loss-csv has");
}

}  // namespace anymesh
