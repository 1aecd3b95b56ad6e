#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <numeric>
#include <sstream>

#include "framework/data/gpt_dataset.h"
#include "framework/util/format.h"
#include "tests/support/count.h"
#include "tools/plot/svg.h"

namespace anymesh {
namespace {

using testing::HasSubstr;
using testing::Not;

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
         << (more.empty() ? "  --vocab-size 256\n  --mock-data\n" : more)
         << "iter  1/60  loss 5.9000\n  --num-layers 3\n";
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
  EXPECT_THAT(drawn("bars", bars),
              testing::AllOf(HasSubstr(">ZeRO 1</text>"), HasSubstr(">3</text>"),
                             HasSubstr(">1.500</text>")));
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
              HasSubstr("log: '  --num-layer 4': unknown flag --num-layer"));
  EXPECT_THAT(message(mesh + "  --num-layers four\n"),
              HasSubstr("log: '  --num-layers four': --num-layers four: expected an integer"));
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
  for (const std::string& text : {std::string("{"), std::string("[]"),
                                  std::string("{\"traceEvents\": 1}"), std::string("\xff\xfe")})
    EXPECT_THAT(message(text), HasSubstr("trace.json: expected JSON with an array 'traceEvents'"));
  EXPECT_THAT(message(std::string(100000, '[')),
              HasSubstr("trace.json: is JSON that nests deeper"));
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

TEST_F(PlotFigureTest, BatchesAreDealtInOrder) {
  const std::string svg = drawn("batch", log(1, 1, 2, 0));  // 16 samples in micro-batches of 2
  EXPECT_EQ(count(svg, ">micro-batch "), 4u);
  EXPECT_EQ(count(svg, ">15</text>"), 2u);  // in the step, and on its rank
  EXPECT_EQ(count(svg, "height=\"4.0\" class=\"s0\""), 16u);
  EXPECT_EQ(count(svg, "height=\"4.0\" class=\"s1\""), 16u);
  EXPECT_THAT(svg, HasSubstr(">all-reduce, once a step</text>"));
  EXPECT_THAT(drawn("batch", log(1, 1, 2, 1)), HasSubstr(">reduce-scatter, once a step</text>"));
  EXPECT_THAT(drawn("batch", log(1, 1, 2, 3)),
              HasSubstr(">reduce-scatter, each micro-batch</text>"));
  EXPECT_THAT(drawn("batch", log(2, 1, 1, 0)), HasSubstr(">nothing to reduce</text>"));
  // Sample 4 begins the second run of 2 ranks x 2 samples, on rank 0.
  EXPECT_LT(svg.find(">5</text>", svg.find(">dp 0</text>")), svg.find(">dp 1</text>"));
  EXPECT_GT(svg.find(">6</text>", svg.find(">dp 0</text>")), svg.find(">dp 1</text>"));
  EXPECT_THAT(refused("batch --output " + folder + "o.svg " + log(1, 1, 17, 0)),
              HasSubstr("log: expected up to 16 data parallel ranks and 32 samples of each"));
}

TEST_F(PlotFigureTest, MatricesAreCutOverTensorRanks) {
  const std::string svg = drawn("tensor", log(4, 1, 1, 0));
  EXPECT_THAT(svg, HasSubstr(">tp 3 holds columns 192-255 of A, [64, 64], and rows 192-255 of B, "
                             "[64, 64]</text>"));
  EXPECT_THAT(svg, HasSubstr(">[64, 256]</text>"));
  EXPECT_EQ(count(svg, "class=\"s3\""), 4u);  // in A, gelu(XA), B and the list
  EXPECT_THAT(svg, HasSubstr("all-reduce"));
  const std::string mock = "  --vocab-size 256\n  --mock-data\n",
                    gated = drawn("tensor", log(2, 1, 1, 0, mock + "  --swiglu\n"));
  EXPECT_THAT(gated, HasSubstr(">tp 1 holds columns 64-127 of G and of U, [64, 64]"));
  EXPECT_THAT(drawn("tensor", log(2, 1, 1, 0, mock + "  --sequence-parallel\n")),
              HasSubstr("reduce-scatter"));
  EXPECT_THAT(drawn("tensor", log(1, 2, 1, 0)), HasSubstr("nothing to sum"));
}

// Bars are 126 wide, and a partition of 4 is 31.5. "pale" is held, but not used.
TEST_F(PlotFigureTest, ZeroStagesHoldAndUsePartitions) {
  const std::string svg = drawn("zero", log(1, 1, 4, 2));
  std::vector<std::string> panels;
  for (int stage = 0; stage <= 3; ++stage) {
    const size_t begin = svg.find(">ZeRO " + std::to_string(stage) + "<"),
                 end = svg.find(">ZeRO " + std::to_string(stage + 1) + "<");
    panels.push_back(svg.substr(begin, end - begin));
  }
  const auto bars = [&](int stage, const std::string& width, const std::string& style) {
    return count(panels[stage], "width=\"" + width + "\" height=\"5.0\" class=\"" + style + "\"");
  };
  // Parameters: used whole in the forward and the backward, and in the step by stage 0. The gather
  // brings the others' updates at stages 1 and 2. At stage 3 they are never whole.
  EXPECT_EQ(bars(0, "126.0", "s0"), 4u * 3);
  EXPECT_EQ(bars(1, "126.0", "s0"), 4u * 3);
  EXPECT_EQ(bars(1, "31.5", "s0"), 4u);
  EXPECT_EQ(bars(2, "126.0", "s0"), 4u * 3);
  EXPECT_EQ(bars(3, "126.0", "s0"), 0u);
  EXPECT_EQ(bars(3, "31.5", "s0"), 4u * 3);
  EXPECT_EQ(count(panels[3], "height=\"1.5\" class=\"s0\""), 4u * 2);  // gathered units
  // Gradients: whole up to stage 1.
  EXPECT_EQ(bars(1, "126.0", "s1"), 4u * 2);
  EXPECT_EQ(bars(2, "126.0", "s1"), 0u);
  EXPECT_EQ(bars(2, "31.5", "s1"), 4u * 2);
  // The optimizer's state is used in the step alone.
  EXPECT_EQ(bars(0, "126.0", "s2"), 4u);
  EXPECT_EQ(bars(0, "126.0", "s2 pale"), 4u * 4);
  EXPECT_EQ(bars(1, "31.5", "s2"), 4u);
  EXPECT_EQ(bars(1, "31.5", "s2 pale"), 4u * 4);
  EXPECT_EQ(count(panels[0], ">all-reduce<"), 1u);
  EXPECT_EQ(count(panels[1], ">all-gather<"), 1u);
  EXPECT_EQ(count(panels[3], ">all-gather, reduce-scatter<"), 1u);
  EXPECT_THAT(refused("zero --output " + folder + "o.svg " + log(1, 1, 9, 0)),
              HasSubstr("log: expected up to 8 data parallel ranks, found 9"));
}

TEST_F(PlotFigureTest, SavesAreDrawnFromTheirReport) {
  const std::string times = "save times, ms, the greatest of all ranks: ";
  const std::string path = write(
      "log", "saved in here/global_step3 in 40 ms (0.1 GB at 1 GB/s)\n" + times +
                 "copy 2.0, gather 0.0, serialise 4.0, write 6.0, fsync 8.0, commit 10.0; stall "
                 "5.0, total 40.0\nsaved ck/global_step6 in 9 ms (0.1 GB at 1 GB/s)\n" +
                 times +
                 "copy 0.0, gather 0.0, serialise 4.0, write 4.0, fsync 4.0, commit 4.0; stall "
                 "9.0, total 9.0\n");
  const std::string svg = drawn("save", path);
  EXPECT_THAT(svg, HasSubstr(">step 3</text>"));
  EXPECT_THAT(svg, HasSubstr(">step 6</text>"));
  EXPECT_THAT(svg, HasSubstr(">9 ms</text>"));
  // 40 ms are 556 pixels. The commit comes last; 16 ms of parts do not fit into the second's 9.
  EXPECT_THAT(svg,
              HasSubstr("x=\"509.0\" y=\"64.0\" width=\"138.4\" height=\"24.0\" class=\"s5\""));
  EXPECT_THAT(svg, HasSubstr("width=\"69.5\" height=\"6.0\" class=\"s6\""));
  EXPECT_THAT(svg,
              HasSubstr("x=\"258.8\" y=\"116.0\" width=\"55.0\" height=\"24.0\" class=\"s5\""));
  const auto message = [&](const std::string& text) {
    return refused("save --output " + folder + "o.svg " + write("log", text));
  };
  EXPECT_THAT(message("iteration 1\n"), HasSubstr("log: expected lines 'save times, ms, ...'"));
  for (const char* bad : {"copy 1, gather 1",
                          "copy -1, gather 0, serialise 0, write 0, fsync 0, "
                          "commit 0; stall 0, total 1",
                          "copy nan, gather 0, serialise 0, write 0, "
                          "fsync 0, commit 0; stall 0, total 1"})
    EXPECT_THAT(message(times + bad + "\n"), HasSubstr("expected eight times as pretrain_gpt"));
}

// Each sample has a colour, at its place in the file, in the stream and in the order of reading.
TEST_F(PlotFigureTest, DataIsDrawnAsTheTrainerReadsIt) {
  const std::string prefix = folder + "text";
  {
    IndexedDatasetBuilder builder(prefix, TokenType::kUint16);
    for (int document = 0; document < 4; ++document) {
      std::vector<int32_t> tokens(50);
      std::iota(tokens.begin(), tokens.end(), 100 * document);
      builder.add_document(tokens);
    }
    builder.finish();
  }
  const std::string flags =
      "  --split 1,0,0\n  --tokenizer-type NullTokenizer\n  --vocab-size 999\n"
      "  --eval-iters 0\n  --data-path ";
  const std::string svg = drawn("data", log(1, 1, 2, 0, flags + prefix + "\n"));
  const GptDataset data(std::make_shared<const IndexedDataset>(prefix), {0, 4}, 60 * 16, 32, 1234,
                        "train");
  EXPECT_THAT(svg, HasSubstr(">4 documents to train on, 200 tokens</text>"));
  EXPECT_THAT(svg, HasSubstr(string_printf("the first 8 of %ld samples", data.size())));
  for (int i = 0; i < 8; ++i)
    EXPECT_THAT(svg, HasSubstr(string_printf(">%u</text>", data.sample_order()[i])));
  std::vector<int64_t> tokens(33);
  data.sample(0, tokens);
  for (int i = 0; i < 14; ++i)
    EXPECT_GE(count(svg, string_printf(">%ld</text>", tokens[i + 1])), i < 13 ? 2u : 1u);
  const auto message = [&](const std::string& more) {
    return refused("data --output " + folder + "o.svg " + log(1, 1, 1, 0, more));
  };
  EXPECT_THAT(message(""), HasSubstr("log: expected a run with --data-path, found --mock-data"));
  EXPECT_THAT(message(flags + "0.5 a 0.5 b\n"),
              HasSubstr("expected one data set, --data-path blends 2"));
  EXPECT_THAT(message(flags + folder + "none\n"), HasSubstr("none.idx"));
}

}  // namespace
}  // namespace anymesh
