#pragma once

#include <string>
#include <vector>

#include "framework/config/config.h"
#include "framework/engine.h"

namespace anymesh {

// Checks, before the first step, that there is space for the run's saves. Adds lines to `report`.
void plan_saves(const CheckpointConfig& c, const BatchPlan& plan, Engine& engine,
                std::vector<std::string>& report);

}  // namespace anymesh
