// The figures of plot_figure. A kind is a function in a file of its own, and a row of the table in
// plot_figure.cpp. Each reads the file that the user names, and throws, with the file's name, if it
// is of another form or too large to be drawn.
#pragma once

#include <string>
#include <vector>

#include "tools/plot/svg.h"

namespace anymesh {

// Sizes in pixels. A row's label ends left of kLeft; the first row begins at kTop.
constexpr double kLeft = 92, kTop = 64, kRow = 34, kBar = 24, kWidth = 640, kMargin = 24;

struct Figure {
  std::string title;  // if the user gives none
  std::string seen;   // sentences that say what is to be seen, for readers who can't see it
  std::string body;   // SVG elements (svg.h) between x = kLeft and kLeft + width, from kTop on
  double bottom = 0;  // y of the body's end
  std::vector<std::string> legend = {};  // names of series(0), (1), ...
  double width = kWidth;
};

std::string figure_svg(const Figure& figure, const std::string& title);

struct RecordedRun;

// Returns the lines of a file that are not empty. Throws if there are none.
std::vector<std::string> lines_of(const std::string& path);

// A row's label, left of a bar that begins at `y`.
std::string row_label(double y, const std::string& text);
// A text in the middle of a bar, if the bar is wide enough for it.
std::string text_within(double x, double width, double y, const std::string& style,
                        const std::string& text);
// Lines across the rows at round values, with their numbers at `below`.
std::string ruler(const Axis& axis, int count, double bottom, double below);

// Lines 'stage 0: F0 F1 . B0': a row of cells for each, '.' an empty one. The letters are a cell's
// kind, and the digits after them are written into it. Rows are of one scale, up to a heading.
//
//   # before                  a heading
//   rank 0: a0*3 .*2.5 > s0   cells of 3 and 2.5 columns, and an arrow; '|' is a gap
//   ~                         links the next row's cells to those of the same name in the row above,
//                             which may have another scale
//   a = of rank 0             names a kind in the legend
Figure cells_figure(const std::string& path);

// A CSV whose header names the parts, 'ZeRO,parameters,gradients', and then lines of a label and
// numbers, '0,1.5,3': a bar of parts for each.
Figure bars_figure(const std::string& path);

// A tag folder of any mesh and ZeRO stage, a universal folder, or weights: a row for each file of
// torch.save or safetensors, or for several of a kind, with a bar of what it holds.
Figure checkpoint_figure(const std::string& path);

// A parameter of a checkpoint as a rectangle, cut into the tp ranks' slices and these into the dp
// ranks' fragments. Each is joined to the file that holds it. If there is no such parameter, the
// error has names like this one.
Figure parameter_figure(const std::string& path, const std::string& name);

// A trace of --trace: when each rank ran the forward and the backward of each micro-batch.
Figure pipeline_figure(const std::string& path);

// The other kinds draw a run from its record (recorded_run.h).

// Which rank holds which layers, tp slices and ZeRO partitions.
Figure mesh_figure(const RecordedRun& recorded);

// The two matrices of the MLP, cut by column and by row over the tp ranks, with their shapes and
// what each rank holds.
Figure tensor_figure(const RecordedRun& recorded);

// How documents become samples, with the token files that --data-path names: the documents in the
// file, shuffled and laid end to end, cut into samples, and the order in which the samples are
// read. A large data set is drawn up to a few documents and samples. Refuses mock data and blends.
Figure data_figure(const RecordedRun& recorded);

// How the samples of the first step are dealt to the dp ranks and micro-batches, and where
// gradients are summed.
Figure batch_figure(const RecordedRun& recorded);

// The states that each dp rank holds and uses at each moment of a step, for the ZeRO stages 0 to 3.
Figure zero_figure(const RecordedRun& recorded);

// The last saves from call to commit, and how long training stood still.
Figure save_figure(const RecordedRun& recorded);

}  // namespace anymesh
