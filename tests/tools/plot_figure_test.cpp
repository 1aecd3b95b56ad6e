#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
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

  // Writes what pretrain_gpt prints at the start of a run, and more flags.
  std::string log(int tp, int pp, int dp, int zero, const std::string& more = "") const {
    std::ostringstream text;
    text << "mesh: tensor " << tp << " x pipeline " << pp << " x data " << dp << " = "
         << tp * pp * dp << " ranks, 1 threads per rank\n"
         << "model: 218496 parameters, at most 60608 on a rank; vocabulary of 256, padded to 256\n"
         << "  --tensor-model-parallel-size " << tp << "\n  --pipeline-model-parallel-size " << pp
         << "\n  --zero-stage " << zero << "\n  --micro-batch-size 2\n  --global-batch-size "
         << 8 * dp << "\n  --train-iters 60\n  --lr 0.003\n  --num-layers 16\n"
         << "  --hidden-size 64\n  --num-attention-heads 8\n  --seq-length 32\n"
         << "  --max-position-embeddings 32\n"
         << (more.empty() ? "  --vocab-size 256\n  mock_data true\n" : more)
         << "iteration      1/60 | lm loss 5.9 |\n  --num-layers 3\n";
    return write("log", text.str());
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
  EXPECT_THAT(refused("cells " + output),
              testing::AllOf(HasSubstr("give cells, bars"), HasSubstr(", --output and a file")));
  EXPECT_THAT(refused("pie " + output + cells), HasSubstr("found 'pie'"));
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

// Each rank has a cell, with a bar that is as long as its part of the stage's state.
TEST_F(PlotFigureTest, MeshesOfEverySizeFit) {
  const std::string small = drawn("mesh", log(2, 2, 2, 1));
  EXPECT_THAT(small, HasSubstr(">Who holds what on tp 2 x pp 2 x dp 2 with ZeRO 1</text>"));
  EXPECT_THAT(small, HasSubstr(">layers 8-15</text>"));
  EXPECT_EQ(count(small, ">rank "), 8u);
  EXPECT_EQ(count(small, "width=\"73.0\" height=\"9.0\" class=\"s0\""), 8u);
  EXPECT_EQ(count(small, "width=\"73.0\" height=\"9.0\" class=\"s1\""), 8u);
  EXPECT_EQ(count(small, "width=\"36.5\" height=\"9.0\" class=\"s2\""), 8u);

  for (const auto& [tp, pp, dp] : {std::array{4, 4, 4}, {8, 8, 1}, {4, 16, 1}, {1, 2, 64}}) {
    const std::string svg = drawn("mesh", log(tp, pp, dp, 3));
    EXPECT_EQ(count(svg, ">rank "), static_cast<size_t>(tp * pp * dp));
    EXPECT_THAT(svg, HasSubstr("width=\"756.0\""));
  }
  EXPECT_THAT(refused("mesh --output " + folder + "o.svg " + log(1, 2, 256, 0)),
              HasSubstr("log: expected a mesh of up to 256 ranks"));
}

TEST_F(PlotFigureTest, RunsWithoutTheirStartAreRefused) {
  const auto message = [&](const std::string& text) {
    return refused("mesh --output " + folder + "o.svg " + write("log", text));
  };
  EXPECT_THAT(message("iteration 1\n"), HasSubstr("log: expected 'mesh: tensor T x pipeline P"));
  EXPECT_THAT(message("mesh: tensor 2 x pipeline -1 x data 1\n"),
              HasSubstr("log: expected 'mesh:"));
  EXPECT_THAT(message("mesh: tensor 9999 x pipeline 9999 x data 9999\n"),
              HasSubstr("log: expected 'mesh:"));
  const std::string mesh = "mesh: tensor 2 x pipeline 1 x data 1 = 2 ranks\n",
                    model = "model: 9 parameters, at most 9 on a rank\n";
  EXPECT_THAT(message(mesh + "  --num-layer 4\n"),
              HasSubstr("log: '  --num-layer 4': expected a flag of pretrain_gpt"));
  EXPECT_THAT(message(mesh + "  --num-layers four\n"),
              HasSubstr("log: '  --num-layers four': expected an integer"));
  EXPECT_THAT(message(mesh + "  --num-layers 4\n  --num-layers 5\n"), HasSubstr("contradict"));
  EXPECT_THAT(message(mesh + model + "  --num-layers 4\n"),
              HasSubstr("log: the lines 'mesh:' and 'model:' do not fit its flags"));
  EXPECT_THAT(message(mesh + model + "  --tensor-model-parallel-size 2\n"),
              HasSubstr("log: give exactly one of --train-iters"));
}

TEST_F(PlotFigureTest, CellsShowTheirNumbers) {
  const std::string svg = drawn("cells", write("cells.txt", "s 0: F0 F1 . B0\ns 1: . F0 B0\n"));
  EXPECT_EQ(count(svg, "height=\"24.0\" class=\"s0\""), 3u);
  EXPECT_EQ(count(svg, "height=\"24.0\" class=\"s1\""), 2u);
  EXPECT_EQ(count(svg, "height=\"24.0\" class=\"empty\""), 2u);
  EXPECT_EQ(count(svg, "class=\"on mid\">0</text>"), 4u);
  EXPECT_EQ(count(svg, "class=\"on mid\">1</text>"), 1u);
  EXPECT_EQ(count(svg, "class=\"label\">"), 2u);  // the legend
}

std::string event(const std::string& name, int rank, const std::string& number, double begin,
                  double length) {
  return "{\"args\":{\"micro_batch\":" + number +
         "},\"cat\":\"phase\",\"dur\":" + std::to_string(length) + ",\"name\":\"" + name +
         "\",\"ph\":\"X\",\"pid\":" + std::to_string(rank) +
         ",\"tid\":0,\"ts\":" + std::to_string(begin) + "}";
}

// Two ranks for 4 ms: a forward of 1 ms and a backward of 2 on rank 0, 1 and 1 on rank 1.
TEST_F(PlotFigureTest, PipelinesHaveMeasuredDurations) {
  const std::string trace =
      "{\"traceEvents\": [" + event("forward", 0, "12", 1000, 1000) + "," +
      event("forward", 1, "12", 2000, 1000) + "," + event("backward", 1, "12", 3000, 1000) + "," +
      event("backward", 0, "12", 3000, 2000) + ",{\"name\":\"aten::mm\",\"cat\":\"operator\"}]}";
  const std::string svg = drawn("pipeline", write("trace.json", trace));
  EXPECT_EQ(count(svg, ">12</text>"), 4u);
  EXPECT_THAT(svg, HasSubstr(">75 % busy</text>"));
  EXPECT_THAT(svg, HasSubstr(">50 % busy</text>"));
  EXPECT_THAT(svg, HasSubstr("x=\"92.0\" y=\"64.0\" width=\"140.9\" height=\"24.0\" class=\"s0\""));
  EXPECT_THAT(svg,
              HasSubstr("x=\"375.0\" y=\"64.0\" width=\"282.4\" height=\"24.0\" class=\"s1\""));
}

TEST_F(PlotFigureTest, HostileTracesAreRefused) {
  const auto message = [&](const std::string& text) {
    return refused("pipeline --output " + folder + "o.svg " + write("trace.json", text));
  };
  const auto events = [](const std::string& event) { return "{\"traceEvents\": [" + event + "]}"; };
  for (const std::string& text :
       {std::string("{"), std::string("[]"), std::string("{\"traceEvents\": 1}"),
        std::string(100000, '['), std::string("\xff\xfe")})
    EXPECT_THAT(message(text), HasSubstr("trace.json: expected JSON with an array 'traceEvents'"));
  EXPECT_THAT(message(events("1, [], null")), HasSubstr("trace.json: expected events 'forward'"));
  for (const char* number : {"-1", "1.5", "\"1\"", "1e99", "99999999999999999999"})
    EXPECT_THAT(message(events(event("forward", 0, number, 1, 1))),
                HasSubstr("trace.json: event 0, a forward: expected a 'pid' below 64, numbers"));
  EXPECT_THAT(message(events(event("backward", 64, "0", 1, 1))), HasSubstr("event 0, a backward"));
  EXPECT_THAT(message(events(event("forward", 0, "0", 1, -1))), HasSubstr("event 0, a forward"));
  EXPECT_THAT(message(events(event("forward", 0, "0", 1e300, 1))), HasSubstr("event 0, a forward"));
  EXPECT_THAT(message(events("{\"cat\":\"phase\",\"name\":\"forward\",\"pid\":0}")),
              HasSubstr("event 0, a forward"));
  EXPECT_THAT(message(events(event("forward", 0, "0", 1, 0))), HasSubstr("phases that take time"));
}

}  // namespace
}  // namespace anymesh
