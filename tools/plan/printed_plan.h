#pragma once

#include <string>
#include <vector>

#include "tools/plan/mesh_plan.h"

namespace anymesh {

struct PrintedPlans {
  const std::vector<MeshPlan>& plans;  // the best first
  const GptConfig& gpt;
  const Machine& machine;
  std::string command;  // of the trainer, without the mesh
  std::string missing;  // flags that it lacks
  std::string explain;  // a mesh, by its name or its place
  int top;              // meshes to print; 0 = all, also those that do not fit
  bool json;
};

// Returns a table of the meshes and the command of the best one; or JSON; or one mesh's sum. Throws
// UserError for an unknown mesh.
std::string printed_plans(const PrintedPlans& printed);

// "--tflops 0.11 --nvlink 3.5 ..."
std::string machine_flags(const Machine& machine);

}  // namespace anymesh
