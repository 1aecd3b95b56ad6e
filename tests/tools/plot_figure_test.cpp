#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tools/plot/svg.h"

namespace anymesh {
namespace {

using testing::HasSubstr;
using testing::Not;

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++found;
  return found;
}

// WCAG's contrast of two colours, "#0072b2".
double luminance(const std::string& color) {
  double sum = 0;
  for (int i = 0; i < 3; ++i) {
    const double c = std::stoi(color.substr(1 + 2 * i, 2), nullptr, 16) / 255.0;
    constexpr double kWeights[] = {0.2126, 0.7152, 0.0722};
    sum += kWeights[i] * (c <= 0.04045 ? c / 12.92 : std::pow((c + 0.055) / 1.055, 2.4));
  }
  return sum;
}

double contrast(const std::string& a, const std::string& b) {
  const double x = luminance(a), y = luminance(b);
  return (std::max(x, y) + 0.05) / (std::min(x, y) + 0.05);
}

// Returns the fill of a class in a style sheet.
std::string fill_of(const std::string& style, const std::string& name) {
  const size_t at = style.find("." + name + "{fill:");
  EXPECT_NE(at, std::string::npos) << name;
  return style.substr(at + name.size() + 7, 7);
}

TEST(Svg, HasTextAlternativesAndTwoPalettes) {
  const std::string svg = svg_begin(10, 20, "a < b", "Two & three.");
  EXPECT_THAT(svg, HasSubstr("<title>a &lt; b</title>"));
  EXPECT_THAT(svg, HasSubstr("<desc>Two &amp; three.</desc>"));
  const size_t dark = svg.find("@media (prefers-color-scheme:dark){");
  ASSERT_NE(dark, std::string::npos);
  for (const std::string& style : {svg.substr(0, dark), svg.substr(dark)}) {
    const std::string background = fill_of(style, "paper");
    for (size_t i = 0; i < 8; ++i)
      EXPECT_GE(contrast(fill_of(style, series(i)), background), i < 3 ? 4.5 : 3) << i;
  }
}

class PlotFigureTest : public testing::Test {
 protected:
  PlotFigureTest() : folder(testing::TempDir() + "plot_figure_" + std::to_string(getpid()) + "/") {
    std::filesystem::create_directories(folder);
  }
  ~PlotFigureTest() override { std::filesystem::remove_all(folder); }

  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(folder + name, std::ios::binary) << text;
    return folder + name;
  }

  static std::string read(const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }

  struct Outcome {
    int status;
    std::string out, err;
  };

  Outcome run(const std::string& arguments) const {
    const std::string command =
        PLOT_FIGURE " " + arguments + " >" + folder + "out 2>" + folder + "err";
    const int status = std::system(command.c_str());
    return {WEXITSTATUS(status), read(folder + "out"), read(folder + "err")};
  }

  // Returns the figure of `file`, which must be a well-formed SVG with finite numbers.
  std::string drawn(const std::string& kind, const std::string& file) const {
    const std::string path = folder + kind + ".svg";
    const Outcome outcome = run(kind + " --output " + path + " " + file);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    const std::string svg = read(path);
    EXPECT_EQ(count(svg, "<text"), count(svg, "</text>"));
    EXPECT_THAT(svg, testing::EndsWith("</svg>\n"));
    EXPECT_THAT(svg, HasSubstr("<desc>"));
    EXPECT_THAT(svg, Not(HasSubstr("<desc></desc>")));
    EXPECT_THAT(svg, Not(HasSubstr("\"nan")));
    EXPECT_THAT(svg, Not(HasSubstr("\"-nan")));
    EXPECT_THAT(svg, Not(HasSubstr("\"inf")));
    return svg;
  }

  // Returns the message for `arguments`, which must be refused.
  std::string refused(const std::string& arguments) const {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.status, 2) << arguments;
    return outcome.err;
  }

  std::string folder;
};

TEST_F(PlotFigureTest, AnswersByExitCode) {
  const std::string cells = write("cells.txt", "stage 0: F . B\n"),
                    bars = write("bars.csv", "ZeRO,parameters,gradients\n0,1,2\n1,1,0.5\n"),
                    output = "--output " + folder + "o.svg ";
  EXPECT_EQ(run("cells " + output + cells + " --title T").status, 0);
  EXPECT_THAT(read(folder + "o.svg"), HasSubstr(">T</text>"));
  EXPECT_THAT(drawn("bars", bars), HasSubstr(">ZeRO 1</text>"));
  const Outcome help = run("--help");
  EXPECT_EQ(help.status, 0);
  EXPECT_THAT(help.out, HasSubstr("--output FILE"));

  EXPECT_EQ(refused("cells " + output + cells + " c2.txt"),
            "plot_figure: unexpected argument 'c2.txt' (see --help)\n");
  EXPECT_THAT(refused("cells " + output), HasSubstr("or mesh, --output and a file"));
  EXPECT_THAT(refused("pie " + output + cells), HasSubstr("or mesh, found 'pie'"));
  EXPECT_THAT(refused("bars " + output + write("x.csv", "a,b\n1,2,3\n")),
              HasSubstr("'1,2,3': expected a label and a number for each of 'a,b'"));
  EXPECT_THAT(refused("cells " + output + folder + "none"),
              HasSubstr("none: cannot open: No such file"));
  ASSERT_EQ(mkfifo((folder + "fifo").c_str(), 0600), 0);
  EXPECT_THAT(refused("cells " + output + folder + "fifo"), HasSubstr("fifo: is a FIFO, expected"));
  EXPECT_EQ(run("cells " + output + "/dev/stdin <" + cells).status, 0);
  EXPECT_THAT(refused("cells --output " + folder + "no/such.svg " + cells),
              HasSubstr("such.svg: cannot write the file"));
}

// An output is not an input, also under another name. SVGs of all our versions begin alike.
TEST_F(PlotFigureTest, ReplacesItsOwnSvgsAlone) {
  const std::string cells = write("cells.txt", "stage 0: F . B\n");
  std::filesystem::create_hard_link(cells, folder + "same.txt");
  EXPECT_THAT(refused("cells --output " + folder + "same.txt " + cells),
              HasSubstr("is an input, " + cells));
  EXPECT_EQ(read(cells), "stage 0: F . B\n");
  const std::string other = write("other.svg", "<svg width=\"1\"></svg>\n");
  EXPECT_THAT(refused("cells --output " + other + " " + cells), HasSubstr("is not an SVG of ours"));
  const std::string old = write(
      "old.svg",
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"756.0\" height=\"194.0\" viewBox=\"0 0 "
      "756.0 194.0\">\n<style>text{}</style>\n</svg>\n");
  EXPECT_EQ(run("cells --output " + old + " " + cells).status, 0);
  EXPECT_THAT(read(old), HasSubstr(">stage 0</text>"));
}

}  // namespace
}  // namespace anymesh
