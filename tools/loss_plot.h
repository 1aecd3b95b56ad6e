// Loss curves as one self-contained SVG: the curves laid over each other, and below them how far
// each is from the first, on a log scale with a lane of its own for exact equality.
//
// The first curve is a broad pale band and the others are dashes that interleave, so that curves on
// top of each other remain visible: a band of alternating colours means "the same".
#pragma once

#include <string>
#include <vector>

#include "tools/loss_csv.h"

namespace anymesh {

// REQUIRES: at least one curve.
std::string loss_plot_svg(const std::string& title, const std::vector<LossCurve>& curves);

}  // namespace anymesh
