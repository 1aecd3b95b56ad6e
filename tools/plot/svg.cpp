#include "tools/plot/svg.h"

#include <cmath>
#include <iterator>

#include "framework/format/folder.h"
#include "framework/util/errors.h"
#include "framework/util/format.h"

namespace anymesh {
namespace {

const std::string kStart = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"";

// GitHub's greys on white, and on its dark background for readers who ask for one.
constexpr const char* kStyle =
    "text{font-family:system-ui,-apple-system,'Segoe UI','Helvetica Neue',Arial,sans-serif;"
    "fill:#24292f}.title{font-size:18px;font-weight:600}.head{font-size:13px;font-weight:600}"
    ".label{font-size:13px}.tick{font-size:11.5px;fill:#656d76}.mid{text-anchor:middle}"
    ".end{text-anchor:end}.on{font-size:11.5px;fill:#fff}path{fill:none;stroke-linejoin:round}"
    ".pale{opacity:.35}.paper{fill:#ffffff}.empty{fill:#e7eaee}.grid{stroke:#e7eaee}.axis{stroke:#"
    "8c959f}"
    ".band{stroke:#c3c9d4}.hair{stroke:#8b94a3}";
constexpr const char* kDarkStyle =
    "text{fill:#e6edf3}.tick{fill:#9198a1}.on{fill:#0d1117}.paper{fill:#0d1117}"
    ".empty{fill:#262c36}.grid{stroke:#262c36}.axis{stroke:#767e88}.band{stroke:#4a515c}"
    ".hair{stroke:#9198a1}";

// The colours of a series on the light and on the dark background. Each has a contrast of at least
// 3 to 1 with its background, the first three of 4.5, so that text can stand on them. Readers who
// lack a kind of cone can tell the first five apart.
constexpr const char* kColors[][2] = {
    {"#0072b2", "#4aa3e0"}, {"#c25400", "#f0853a"}, {"#008060", "#2bc497"}, {"#c95a98", "#e8a0cc"},
    {"#5c1a1a", "#f7ef9a"}, {"#5f5f2a", "#7a7a4a"}, {"#3d9bd1", "#b9dcff"}, {"#4a2a80", "#8f5fff"}};

std::string series_style(bool dark) {
  std::string style;
  for (size_t i = 0; i < std::size(kColors); ++i) {
    const std::string name = "." + series(i), color = kColors[i][dark];
    style += name + "{fill:" + color + "}path" + name + "{fill:none;stroke:" + color + "}";
  }
  return style;
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text)
    if (c == '&' || c == '<' || c == '>')
      out += c == '&' ? "&amp;" : c == '<' ? "&lt;" : "&gt;";
    else if (static_cast<unsigned char>(c) >= 0x20)
      out += c;
  return out;
}

}  // namespace

std::string svg_begin(double width, double height, const std::string& title,
                      const std::string& description) {
  const std::string w = px(width), h = px(height);
  return kStart + w + "\" height=\"" + h + "\" viewBox=\"0 0 " + w + " " + h +
         "\" role=\"img\">\n<title>" + escaped(title) + "</title>\n<desc>" + escaped(description) +
         "</desc>\n<style>" + kStyle + series_style(false) + "@media (prefers-color-scheme:dark){" +
         kDarkStyle + series_style(true) +
         "}</style>\n<rect width=\"100%\" height=\"100%\" rx=\"8\" class=\"paper\"/>\n";
}

void write_svg(const std::string& path, const std::string& svg,
               const std::vector<std::filesystem::path>& inputs) {
  write_output("--output", path, {"an SVG of ours", kStart}, svg, inputs);
}

std::string px(double value) { return string_printf("%.1f", value); }

std::string path_at(const std::string& points, const std::string& attributes) {
  return "<path d=\"" + points + "\" " + attributes + "/>\n";
}

std::string rectangle(double x, double y, double width, double height, const std::string& style) {
  return "<rect x=\"" + px(x) + "\" y=\"" + px(y) + "\" width=\"" + px(width) + "\" height=\"" +
         px(height) + "\" class=\"" + style + "\"/>\n";
}

std::string text_at(double x, double y, const std::string& style, const std::string& text) {
  return "<text x=\"" + px(x) + "\" y=\"" + px(y) + "\" class=\"" + style + "\">" + escaped(text) +
         "</text>\n";
}

std::string line_at(double x1, double y1, double x2, double y2, const std::string& style) {
  return "<line x1=\"" + px(x1) + "\" y1=\"" + px(y1) + "\" x2=\"" + px(x2) + "\" y2=\"" + px(y2) +
         "\" class=\"" + style + "\"/>\n";
}

std::vector<double> nice_ticks(double low, double high, int count) {
  const double rough = (high - low) / count;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double multiple : {5, 2, 1})
    if (multiple * power >= rough) step = multiple * power;
  std::vector<double> ticks;
  for (double k = std::ceil(low / step); k * step <= high; ++k) ticks.push_back(k * step);
  return ticks;
}

std::string series(size_t index) { return "s" + std::to_string(index % std::size(kColors)); }

}  // namespace anymesh
