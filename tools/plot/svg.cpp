#include "tools/plot/svg.h"

#include <cmath>

#include "framework/format/folder.h"
#include "framework/util/errors.h"
#include "framework/util/format.h"
#include "tools/plot/plot.css.h"

namespace anymesh {
namespace {

const std::string kStart = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"";

constexpr size_t kColors = 8;  // in plot.css

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
         "</desc>\n<style>" + kPlotStyle +
         "</style>\n<rect width=\"100%\" height=\"100%\" rx=\"8\" class=\"paper\"/>\n";
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

std::string series(size_t index) { return "s" + std::to_string(index % kColors); }

}  // namespace anymesh
