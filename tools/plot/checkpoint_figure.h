// Draws a checkpoint from its files: a tag folder of any mesh and ZeRO stage, a universal folder, or
// weights.
#pragma once

#include <string>

#include "tools/plot/figure.h"

namespace anymesh {

// Draws a row for each file of torch.save or safetensors, or for several of a kind, with a bar of
// what it holds.
Figure checkpoint_figure(const std::string& path);

// Draws a parameter as a rectangle, cut into the tp ranks' slices and these into the dp ranks'
// fragments. Each is joined to the file that holds it. Throws, with names like this one, if there
// is no such parameter.
Figure parameter_figure(const std::string& path, const std::string& name);

}  // namespace anymesh
