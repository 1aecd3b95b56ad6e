// Draws loss curves as one self-contained SVG. The curves lie over each other. Below them a panel
// shows how far each is from the first, on a log scale with a lane of its own for exact equality.
//
// The first curve is a broad pale band and the others are interleaved dashes, so that curves on top
// of each other remain visible. A band of alternating colours means "the same".
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/plot/loss_csv.h"

namespace anymesh {

// A thin vertical line with a text, such as "save", at an iteration.
struct Mark {
  int64_t iteration = 0;
  std::string text;
};

// A horizontal line with a text, such as "ln 256", at a loss.
struct Level {
  double loss = 0;
  std::string text;
};

// Parse "STEP=text" and "LOSS=text". Throw for anything else.
Mark read_mark(const std::string& argument);
Level read_level(const std::string& argument);

// Throws for a mark at an iteration that no curve reaches. REQUIRES: at least one curve.
std::string loss_plot_svg(const std::string& title, const std::vector<LossCurve>& curves,
                          const std::vector<Mark>& marks = {},
                          const std::vector<Level>& levels = {});

}  // namespace anymesh
