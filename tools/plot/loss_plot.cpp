#include "tools/plot/loss_plot.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "framework/util/errors.h"
#include "framework/util/format.h"
#include "framework/util/parse_number.h"
#include "tools/plot/svg.h"

namespace anymesh {
namespace {

// Sizes in pixels.
constexpr double kLeft = 66, kPlotWidth = 660, kGap = 28;
constexpr double kTop = 84, kLossHeight = 330, kBetween = 64, kDeltaHeight = 150, kBottom = 52;
constexpr double kEqualLane = 30;  // in the lower panel, for deltas of exactly 0

struct Point {
  double x, y;
};

struct Panel {
  Axis x{kLeft, kLeft + kPlotWidth}, y;

  double top() const { return y.to; }
  double bottom() const { return y.from; }
};

// Returns a run's dashes. Dashes of equal length fill each other's gaps, since each run's begin one
// dash later. From the fifth run on they are longer and no longer in step.
std::string dashes_of(size_t curve, size_t curves) {
  const size_t lanes = std::min<size_t>(curves - 1, 4);
  if (curve == 0 || lanes < 2) return "";
  const size_t length = 9 + 4 * ((curve - 1) / lanes);
  return " stroke-dasharray=\"" + std::to_string(length) + " " +
         std::to_string(length * (lanes - 1)) + "\" stroke-dashoffset=\"-" +
         std::to_string(length * ((curve - 1) % lanes)) + "\"";
}

std::string stroke_of(size_t curve, double width) {
  return "class=\"" + (curve == 0 ? "band" : series(curve - 1)) + "\" stroke-width=\"" +
         string_printf("%g", width) + "\"";
}

// Keeps only the lowest and the highest point in each half pixel: nothing more can be seen.
std::vector<Point> thinned(const std::vector<Point>& points) {
  std::vector<Point> kept;
  for (size_t begin = 0, end; begin < points.size(); begin = end) {
    const double column = std::floor(points[begin].x * 2);
    size_t low = begin, high = begin;
    for (end = begin; end < points.size() && std::floor(points[end].x * 2) == column; ++end) {
      if (points[end].y < points[low].y) low = end;
      if (points[end].y > points[high].y) high = end;
    }
    kept.push_back(points[std::min(low, high)]);
    if (low != high) kept.push_back(points[std::max(low, high)]);
  }
  return kept;
}

std::string path_through(const std::vector<Point>& points, const std::string& stroke) {
  std::string path;
  for (const Point& point : thinned(points)) {
    path += path.empty() ? 'M' : 'L';
    path += px(point.x) + ' ' + px(point.y);
  }
  // A curve of one point has no length, so its caps show it.
  if (points.size() == 1) path += "h0\" stroke-linecap=\"round";
  return path_at(path, stroke);
}

std::string frame(const Panel& panel, const std::string& heading) {
  std::string svg = text_at(kLeft, panel.top() - 12, "head", heading);
  for (const double tick : nice_ticks(panel.x.low, panel.x.high, 8)) {
    if (tick != std::floor(tick)) continue;  // there is no iteration 2.5
    const double x = panel.x.at(tick);
    svg += line_at(x, panel.top(), x, panel.bottom(), "grid");
    svg += text_at(x, panel.bottom() + 18, "tick mid", string_printf("%.15g", tick));
  }
  return svg + line_at(kLeft, panel.bottom(), kLeft + kPlotWidth, panel.bottom(), "axis");
}

// Draws a line across a panel, with its label.
std::string level(double y, const std::string& label) {
  return line_at(kLeft, y, kLeft + kPlotWidth, y, "grid") +
         text_at(kLeft - 10, y + 4, "tick end", label);
}

// Draws lines across the panel. Each has its text at the right end, free of the grid.
std::string levels_at(const Panel& panel, const std::vector<Level>& levels) {
  std::string svg;
  for (const auto& [loss, text] : levels) {
    const double y = panel.y.at(loss), width = 6.4 * static_cast<double>(text.size());
    svg += line_at(kLeft, y, kLeft + kPlotWidth, y, "axis") +
           rectangle(kLeft + kPlotWidth - width, y - 16, width, 14, "paper") +
           text_at(kLeft + kPlotWidth, y - 5, "tick end", text);
  }
  return svg;
}

std::string loss_panel(const Panel& panel, const std::vector<LossCurve>& curves,
                       const std::vector<Level>& levels) {
  std::string svg = frame(panel, "lm loss");
  for (const double tick : nice_ticks(panel.y.low, panel.y.high, 6))
    svg += level(panel.y.at(tick), string_printf("%g", tick));
  svg += levels_at(panel, levels);
  for (size_t i = 0; i < curves.size(); ++i) {
    std::vector<Point> points;
    for (const LossRow& row : curves[i].rows)
      points.push_back({panel.x.at(row.iteration), panel.y.at(row.loss)});
    if (i == 0) {
      svg += path_through(points, stroke_of(0, 7));
      svg += path_through(points, "class=\"hair\" stroke-width=\"1\"");
    } else {  // the hairline keeps the dashes of one run together
      svg += path_through(points, stroke_of(i, 0.7));
      svg += path_through(points, stroke_of(i, 2) + dashes_of(i, curves.size()));
    }
  }
  return svg;
}

// Returns the powers of ten around all deltas that are not 0; low > high if there are none.
std::pair<int, int> decades(const std::vector<std::vector<LossDelta>>& runs) {
  double low = INFINITY, high = 0;
  for (const std::vector<LossDelta>& run : runs)
    for (const LossDelta& delta : run) {
      if (delta.absolute > 0) low = std::min(low, delta.absolute);
      high = std::max(high, delta.absolute);
    }
  if (high == 0) return {0, -1};
  const int floor = static_cast<int>(std::floor(std::log10(low)));
  return {floor, std::max(floor + 1, static_cast<int>(std::ceil(std::log10(high))))};
}

// Draws deltas as a line that is interrupted where they are 0. Those are dots at the height
// `equal`.
std::string delta_curve(const Panel& panel, double equal, const std::vector<LossDelta>& deltas,
                        size_t curve) {
  std::string svg;
  std::vector<Point> line, dots;
  const auto end_line = [&] {
    if (line.size() == 1) dots.push_back(line[0]);
    if (line.size() > 1) svg += path_through(line, stroke_of(curve, 1.4));
    line.clear();
  };
  for (const LossDelta& delta : deltas) {
    if (delta.absolute == 0) {
      end_line();
      dots.push_back({panel.x.at(delta.iteration), equal});
    } else {
      line.push_back({panel.x.at(delta.iteration), panel.y.at(std::log10(delta.absolute))});
    }
  }
  end_line();
  std::string path;  // dots have no length, but round caps
  for (const Point& dot : thinned(dots)) path += 'M' + px(dot.x) + ' ' + px(dot.y) + "h0";
  if (path.empty()) return svg;
  return svg + path_at(path, "stroke-linecap=\"round\" " + stroke_of(curve, 3));
}

std::string delta_panel(Panel panel, const std::vector<LossCurve>& curves) {
  std::vector<std::vector<LossDelta>> runs;
  for (size_t i = 1; i < curves.size(); ++i) runs.push_back(loss_deltas(curves[0], curves[i]));
  const auto [low, high] = decades(runs);
  std::string svg = frame(panel, "|\u0394 lm loss| to " + curves[0].label);
  svg += text_at(kLeft - 10, panel.bottom() - kEqualLane / 2 + 4, "tick end", "equal");
  panel.y = {panel.bottom() - kEqualLane, panel.top(), double(low), double(high)};
  svg += line_at(kLeft, panel.bottom(), kLeft + kPlotWidth, panel.bottom(), "grid");
  const int step = std::max(1, (high - low + 4) / 5);
  for (int decade = low; decade <= high; decade += step)
    svg += level(panel.y.at(decade),
                 (decade < 0 ? "1e\u2212" : "1e") + std::to_string(std::abs(decade)));
  if (low > high)
    svg += text_at(kLeft + kPlotWidth / 2, (panel.top() + panel.bottom()) / 2 + 4, "tick mid",
                   "no difference at any common iteration");
  for (size_t i = 0; i < runs.size(); ++i) {
    const double equal = panel.bottom() + kEqualLane * (i + 1) / (runs.size() + 1);
    svg += delta_curve(panel, equal, runs[i], i + 1);
  }
  return svg;
}

std::string agreement(const std::vector<LossDelta>& deltas) {
  if (deltas.empty()) return "no common iteration";
  const double largest = largest_delta(deltas).relative;
  return largest == 0 ? "equal" : "relative \u0394 \u2264 " + string_printf("%.1e", largest);
}

std::string legend(const std::vector<LossCurve>& curves) {
  std::string svg;
  const double x = kLeft + kPlotWidth + kGap;
  for (size_t i = 0; i < curves.size(); ++i) {
    const double y = kTop + 10 + 40.0 * i;
    svg += path_at("M" + px(x) + " " + px(y) + "h34", stroke_of(i, i == 0 ? 7 : 3));
    svg += text_at(x + 44, y + 4, "label", curves[i].label);
    svg += text_at(x + 44, y + 20, "tick",
                   i == 0 ? "reference" : agreement(loss_deltas(curves[0], curves[i])));
  }
  return svg;
}

double legend_width(const std::vector<LossCurve>& curves) {
  size_t longest = 18;
  for (const LossCurve& curve : curves) longest = std::max(longest, curve.label.size());
  return 44 + 7.2 * longest;
}

Panel loss_axes(const std::vector<LossCurve>& curves, const std::vector<Level>& levels) {
  Panel panel{.y = {kTop + kLossHeight, kTop}};
  auto& [x, y] = panel;
  for (const Level& level : levels) y.include(level.loss);
  for (const LossCurve& curve : curves)
    for (const LossRow& row : curve.rows) {
      x.include(static_cast<double>(row.iteration));
      y.include(row.loss);
    }
  // Keeps the axis wide enough that its ticks are different doubles.
  x.high = std::max(x.high, x.low + std::max(1.0, 1e-9 * x.low));
  double margin =
      std::max(0.05 * (y.high - y.low), 1e-3 * std::max(std::abs(y.low), std::abs(y.high)));
  if (margin == 0) margin = 1;
  y.low -= margin;
  y.high += margin;
  return panel;
}

// Returns the plot in sentences, for readers who can't see it.
std::string seen_in(const std::vector<LossCurve>& curves, const std::vector<Mark>& marks,
                    const std::vector<Level>& levels) {
  std::string seen;
  for (const LossCurve& curve : curves) {
    const LossRow &first = curve.rows.front(), &last = curve.rows.back();
    seen +=
        string_printf("%s: loss %.4g at iteration %ld, %.4g at iteration %ld", curve.label.c_str(),
                      first.loss, first.iteration, last.loss, last.iteration);
    seen += &curve == &curves[0] ? ". " : "; " + agreement(loss_deltas(curves[0], curve)) + ". ";
  }
  for (const auto& [iteration, text] : marks)
    seen += string_printf("Mark at iteration %ld: %s. ", iteration, text.c_str());
  for (const auto& [loss, text] : levels)
    seen += string_printf("Line at the loss %g: %s. ", loss, text.c_str());
  seen.pop_back();
  return seen;
}

// Draws lines across the panels, with texts above the first. A text that would lie on the heading,
// or on the line of a mark further right, goes one row up. No line crosses the heading.
std::string marks_at(const std::vector<Panel>& panels, std::vector<Mark> marks) {
  const Panel& first = panels[0];
  double leftmost = INFINITY;  // of the lines so far, which come from the right
  std::string svg;
  std::ranges::stable_sort(marks, std::greater(), &Mark::iteration);
  for (const auto& [iteration, text] : marks) {
    if (iteration < first.x.low || iteration > first.x.high)
      throw_error("--mark ", iteration, "=", text, ": expected a step from ",
                  string_printf("%.15g to %.15g", first.x.low, first.x.high));
    const double x = first.x.at(static_cast<double>(iteration)),
                 end = x + 8 + 6.4 * static_cast<double>(text.size());
    const bool over_heading = x < kLeft + 60;
    const double y = first.top() - (over_heading || end > leftmost ? 28 : 12);
    leftmost = x;
    svg += text_at(x + 4, y, "tick", text);
    if (!over_heading) svg += line_at(x, y - 9, x, first.top(), "axis");
    for (const Panel& panel : panels) svg += line_at(x, panel.top(), x, panel.bottom(), "axis");
  }
  return svg;
}

// Parses "NUMBER=text".
template <class T>
std::pair<T, std::string> number_and_text(const std::string& argument, const char* expected) {
  const size_t equals = argument.find('=');
  const auto number = parse_number<T>(argument.substr(0, equals));
  if (equals == std::string::npos || equals + 1 == argument.size() || !number ||
      !std::isfinite(static_cast<double>(*number)))
    throw_error(expected[0] == 'S' ? "--mark " : "--level ", argument, ": expected ", expected);
  return {*number, argument.substr(equals + 1)};
}

}  // namespace

Mark read_mark(const std::string& argument) {
  const auto [iteration, text] = number_and_text<int64_t>(argument, "STEP=text");
  return {iteration, text};
}

Level read_level(const std::string& argument) {
  const auto [loss, text] = number_and_text<double>(argument, "LOSS=text");
  return {loss, text};
}

std::string loss_plot_svg(const std::string& title, const std::vector<LossCurve>& curves,
                          const std::vector<Mark>& marks, const std::vector<Level>& levels) {
  const Panel losses = loss_axes(curves, levels);
  const double top = losses.bottom() + kBetween;
  const Panel deltas{losses.x, {top + kDeltaHeight, top}};
  const bool compared = curves.size() > 1;
  const double bottom = compared ? deltas.bottom() : losses.bottom();
  const double width = kLeft + kPlotWidth + kGap + legend_width(curves) + 16;
  const double height = std::max(bottom + kBottom, kTop + 40.0 * curves.size() + 20);
  std::string svg = svg_begin(width, height, title, seen_in(curves, marks, levels)) +
                    text_at(kLeft, 40, "title", title) + loss_panel(losses, curves, levels);
  if (compared) svg += delta_panel(deltas, curves);
  svg += marks_at(compared ? std::vector{losses, deltas} : std::vector{losses}, marks);
  svg += text_at(kLeft + kPlotWidth / 2, bottom + 40, "tick mid", "iteration");
  return svg + legend(curves) + "</svg>\n";
}

}  // namespace anymesh
