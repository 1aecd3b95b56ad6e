// Draws loss curves as one self-contained SVG. The curves lie over each other. Below them a panel
// shows how far each is from the first, on a log scale with a lane of its own for exact equality.
//
// The first curve is a broad pale band and the others are interleaved dashes, so that curves on top
// of each other remain visible. A band of alternating colours means "the same".
#pragma once

#include <string>
#include <vector>

#include "tools/plot/loss_csv.h"

namespace anymesh {

// REQUIRES: at least one curve.
std::string loss_plot_svg(const std::string& title, const std::vector<LossCurve>& curves);

}  // namespace anymesh
