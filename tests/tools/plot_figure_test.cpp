#include <sys/stat.h>

#include <cmath>
#include <numeric>

#include "framework/data/gpt_dataset.h"
#include "framework/util/format.h"
#include "tests/tools/plots.h"
#include "tools/plot/figure.h"
#include "tools/plot/recorded_run.h"

namespace anymesh {
namespace {

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

// Returns a figure's SVG, which must have a description and finite numbers, with all rectangles
// inside the frame.
std::string drawn(const Figure& figure) {
  const std::string svg = figure_svg(figure, "");
  EXPECT_FALSE(figure.seen.empty());
  EXPECT_FALSE(std::regex_search(svg, std::regex("\"-?(nan|inf)")));
  EXPECT_EQ(count(svg, "<text"), count(svg, "</text>"));
  std::smatch frame;
  EXPECT_TRUE(std::regex_search(svg, frame, std::regex("viewBox=\"0 0 ([\\d.]+) ([\\d.]+)\"")));
  for (const Rectangle& each : rectangles(svg, "[^\"]*")) {
    EXPECT_GE(std::min(each.x, each.y), 0);
    EXPECT_LE(each.x + each.width, std::stod(frame[1]));
    EXPECT_LE(each.y + each.height, std::stod(frame[2]));
  }
  return svg;
}

// Expects that the first rectangle of a class is so many times as long as that of another.
void expect_ratio(const std::string& svg, const std::string& a, const std::string& b,
                  double ratio) {
  EXPECT_NEAR(widths(svg, a).at(0) / widths(svg, b).at(0), ratio, 0.01 * ratio) << a << " " << b;
}

class PlotFigureTest : public PlotTest {
 protected:
  RecordedRun recorded(const std::string& record) const {
    return record_of(write("run.jsonl", record));
  }
  std::string refused(const std::string& arguments) const {
    const Outcome outcome = run(PLOT_FIGURE " " + arguments);
    EXPECT_EQ(outcome.status, 2) << arguments;
    return outcome.err;
  }
};

TEST_F(PlotFigureTest, AnswersByExitCode) {
  write("cells.txt", "stage 0: F . B\n");
  write("run.jsonl", record(2, 2, 2, 1));
  EXPECT_EQ(run(PLOT_FIGURE " cells --output @o.svg @cells.txt --title T").status, 0);
  EXPECT_THAT(read_file(folder_ / "o.svg"), HasSubstr(">T</text>"));
  EXPECT_THAT(run(PLOT_FIGURE " --help").out, HasSubstr("--output FILE"));
  for (const char* kind : {"mesh", "tensor", "batch", "zero"})
    EXPECT_EQ(run(PLOT_FIGURE " " + std::string(kind) + " --output @o.svg @run.jsonl").status, 0);

  EXPECT_EQ(refused("cells --output @o.svg @cells.txt c2.txt"),
            "plot_figure: unexpected argument 'c2.txt' (see --help)\n");
  EXPECT_THAT(refused("cells --output @o.svg"),
              HasSubstrs("give cells, bars", ", --output and a file"));
  EXPECT_THAT(refused("pie --output @o.svg @cells.txt"), HasSubstr("found 'pie'"));
  EXPECT_THAT(refused("cells --output @o.svg @none"), HasSubstr("none: cannot open: No such file"));
  ASSERT_EQ(mkfifo((folder_ / "fifo").c_str(), 0600), 0);
  EXPECT_THAT(refused("cells --output @o.svg @fifo"), HasSubstr("fifo: is a FIFO, expected"));
  EXPECT_EQ(run(PLOT_FIGURE " cells --output @o.svg /dev/stdin <@cells.txt").status, 0);
  EXPECT_THAT(refused("cells --output @no/such.svg @cells.txt"),
              HasSubstr("such.svg: cannot write the file"));
  EXPECT_THAT(refused("data --output @o.svg @run.jsonl"),
              HasSubstr("run.jsonl: expected a run with --data-path, found --mock-data"));
}

// An output is not an input, also under another name. SVGs of all our versions begin alike.
TEST_F(PlotFigureTest, ReplacesItsOwnSvgsAlone) {
  const std::string cells = write("cells.txt", "stage 0: F . B\n");
  fs::create_hard_link(cells, folder_ / "same.txt");
  EXPECT_THAT(refused("cells --output @same.txt @cells.txt"), HasSubstr("is an input, " + cells));
  EXPECT_EQ(read_file(cells), "stage 0: F . B\n");
  write("other.svg", "<svg width=\"1\"></svg>\n");
  EXPECT_THAT(refused("cells --output @other.svg @cells.txt"), HasSubstr("is not an SVG of ours"));
  write("old.svg", "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"756.0\"></svg>\n");
  EXPECT_EQ(run(PLOT_FIGURE " cells --output @old.svg @cells.txt").status, 0);
  EXPECT_THAT(read_file(folder_ / "old.svg"), HasSubstr(">stage 0</text>"));
}

TEST_F(PlotFigureTest, LogsStandForTheRecordBesideThem) {
  const std::string log = write("run.log", "mesh: tensor 1 x pipeline 1 x data 1 = 1 ranks\n");
  EXPECT_REFUSES(record_of(log), "run.log: is no record of a run, and there is no ",
                 "run.jsonl: run pretrain_gpt with --loss-csv ");
  write("run.jsonl", record(2, 1, 1, 0));
  EXPECT_EQ(record_of(log).mesh.tp_size, 2);
}

// A resume continues the record, and a line that was cut off counts for nothing.
TEST_F(PlotFigureTest, RecordsGoOn) {
  const auto step = [](int iteration, const std::string& loss) {
    return R"({"event":"step","iteration":)" + std::to_string(iteration) + R"(,"lm_loss":")" +
           loss + "\"}\n";
  };
  const std::string resumed = replaced(record(2, 1, 1, 0), "\"iteration\":0", "\"iteration\":2");
  const RecordedRun read = read_record(
      write("run.jsonl", record(1, 1, 2, 0) + step(1, "4.5") + step(2, "4.5") + step(3, "4.5") +
                             "{\"event\":\"st\n\n" + resumed + step(3, "3.5") + step(4, "nan")));
  ASSERT_EQ(read.steps.size(), 3u);
  EXPECT_EQ(read.steps[2].text, "3.5");
  EXPECT_THAT(read.resumes, ElementsAre(2));
  EXPECT_EQ(read.mesh.tp_size, 2);
}

TEST_F(PlotFigureTest, HostileRecordsAreRefused) {
  const std::string mesh = "bad.jsonl: expected the start of a run with a mesh of 1 to 1000000";
  for (const auto& hostile : std::vector<std::pair<std::string, std::string>>{
           {"{\"event\":\"step\"}\n", mesh},
           {record(-1, 1, 1, 0), mesh},
           {record(9999, 9999, 1, 0), mesh},
           {"{\"event\":" + std::string(100000, '['), "nests deeper than"},
           {record(1, 1, 1, 0, {"--num-layer 4"}), "'--num-layer 4': unknown flag --num-layer"},
           {record(1, 1, 1, 0, {"--num-layers four"}), "expected an integer"},
           {replaced(record(1, 1, 1, 0), "\"tp\":1", "\"tp\":2"), "does not fit its flags"}})
    EXPECT_REFUSES(settings_of(record_of(write("bad.jsonl", hostile.first))), hostile.second);
}

// Equal cells of joined rows are linked, and rows below a heading have a scale of their own.
TEST_F(PlotFigureTest, CellsHaveHeadingsWidthsAndLinks) {
  const std::string svg =
      drawn(cells_figure(write("cells.txt",
                               "# before\nfile: Q0 K0 Q1 K1 .*3 |\n~\nhere: K1*3 Q0 >\n# after\n"
                               "s: Q2\nQ = queries: all\n")));
  for (const char* text : {">before</text>", ">after</text>", ">queries: all</text>", ">K</text>",
                           ">\u2192</text>", "before. after.</desc>"})
    EXPECT_THAT(svg, HasSubstr(text));
  EXPECT_EQ(count(svg, "<path"), 2u);  // Q0 and K1
  EXPECT_EQ(count(svg, ">2</text>"), 1u);
  EXPECT_THAT(widths(svg, "s0"), ElementsAre(78, 78, 126, 638, 13));  // 1/8, 1/5, all, the legend
  EXPECT_THAT(widths(svg, "s1"), ElementsAre(78, 78, 382, 13));
  EXPECT_THAT(widths(svg, "empty"), ElementsAre(238));
  for (const char* bad : {"s: F0*x\n", "s: F0*0\n", "s: F0*nan\n", "s: *2\n"})
    EXPECT_REFUSES(cells_figure(write("x.txt", bad)), "expected a cell and its columns, F0*3");
  EXPECT_REFUSES(cells_figure(write("x.txt", "F\n")), "'F': expected 'label: cell cell ...'");
}

TEST_F(PlotFigureTest, CellsAndBarsShowTheirNumbers) {
  const std::string cells =
      drawn(cells_figure(write("cells.txt", "s 0: F0 F1 . B0\ns 1: . F0 B0\n")));
  EXPECT_EQ(widths(cells, "empty").size(), 2u);
  EXPECT_EQ(count(cells, "class=\"on mid\">0</text>"), 4u);
  EXPECT_EQ(count(cells, "class=\"on mid\">1</text>"), 1u);
  for (const char* kind : {">F</text>", ">B</text>"}) EXPECT_THAT(cells, HasSubstr(kind));

  const std::string bars =
      drawn(bars_figure(write("bars.csv", "ZeRO,parameters,gradients\n0,1,2\n1,1,0.5\n")));
  EXPECT_THAT(bars, HasSubstrs(">ZeRO 1</text>", ">3</text>", ">1.500</text>"));
  expect_ratio(bars, "s1", "s0", 2);
  EXPECT_REFUSES(bars_figure(write("x.csv", "a,b\n1,2,3\n")),
                 "'1,2,3': expected a label and a number for each of 'a,b'");
}

// Two ranks for 4 ms: a forward of 1 ms and a backward of 2 on rank 0, 1 and 1 on rank 1.
TEST_F(PlotFigureTest, PipelinesHaveMeasuredDurations) {
  const std::string svg = drawn(pipeline_figure(
      write("trace.json", trace({event("forward", 0, 12, 1, 1), event("forward", 1, 12, 2, 1),
                                 event("backward", 1, 12, 3, 1), event("backward", 0, 12, 3, 2),
                                 event("tp all_reduce", 0, -1, 0, 9),
                                 "{\"name\":\"aten::mm\",\"cat\":\"operator\"}"}))));
  EXPECT_EQ(count(svg, ">12</text>"), 4u);
  EXPECT_THAT(svg, HasSubstr(">75 % busy</text>"));
  EXPECT_THAT(svg, HasSubstr(">50 % busy</text>"));
  expect_ratio(svg, "s1", "s0", 2);
  EXPECT_REFUSES(pipeline_figure(write("none.json", trace({event("forward", 0, 0, 1, 0)}))),
                 "none.json: expected phases 'forward' and 'backward' that take time");
}

// Each rank has a cell, with a bar that is as long as its part of the stage's state.
TEST_F(PlotFigureTest, MeshesOfEverySizeFit) {
  const std::string small = drawn(mesh_figure(recorded(record(2, 2, 2, 1))));
  EXPECT_THAT(small, HasSubstr(">Who holds what on tp 2 x pp 2 x dp 2 with ZeRO 1</text>"));
  EXPECT_THAT(small, HasSubstr(">layers 8-15</text>"));
  EXPECT_EQ(count(small, ">rank "), 8u);
  expect_ratio(small, "s1", "s0", 1);
  expect_ratio(small, "s2", "s0", 0.5);
  for (const auto& [tp, pp, dp] : {std::array{4, 4, 4}, {8, 8, 1}, {1, 2, 64}})
    EXPECT_EQ(count(drawn(mesh_figure(recorded(record(tp, pp, dp, 3)))), ">rank "),
              static_cast<size_t>(tp * pp * dp));
  EXPECT_REFUSES(mesh_figure(recorded(record(1, 2, 256, 0))), "expected a mesh of up to 256 ranks");
}

TEST_F(PlotFigureTest, BatchesAreDealtInOrder) {
  const auto drawn_batch = [&](const std::string& run) {
    return drawn(batch_figure(recorded(run)));
  };
  const std::string svg = drawn_batch(record(1, 1, 2, 0));  // 16 samples in micro-batches of 2
  EXPECT_EQ(count(svg, ">micro-batch "), 4u);
  EXPECT_EQ(count(svg, ">15</text>"), 2u);  // in the step, and on its rank
  EXPECT_THAT(svg, HasSubstr(">all-reduce, once a step</text>"));
  EXPECT_THAT(drawn_batch(record(1, 1, 2, 1)), HasSubstr(">reduce-scatter, once a step</text>"));
  EXPECT_THAT(drawn_batch(record(1, 1, 2, 3)),
              HasSubstr(">reduce-scatter, each micro-batch</text>"));
  EXPECT_THAT(drawn_batch(record(2, 1, 1, 0)), HasSubstr(">nothing to reduce</text>"));
  // Sample 4 begins the second run of 2 ranks x 2 samples, on rank 0.
  EXPECT_LT(svg.find(">5</text>", svg.find(">dp 0</text>")), svg.find(">dp 1</text>"));
  EXPECT_GT(svg.find(">6</text>", svg.find(">dp 0</text>")), svg.find(">dp 1</text>"));
  EXPECT_REFUSES(batch_figure(recorded(record(1, 1, 17, 0))),
                 "expected up to 16 data parallel ranks and 32 samples of each");
}

TEST_F(PlotFigureTest, MatricesAreCutOverTensorRanks) {
  const auto drawn_mlp = [&](const std::string& run) {
    return drawn(tensor_figure(recorded(run)));
  };
  const std::string svg = drawn_mlp(record(4, 1, 1, 0));
  EXPECT_THAT(svg, HasSubstr(">tp 3 holds columns 192-255 of A, [64, 64], and rows 192-255 of B, "
                             "[64, 64]</text>"));
  EXPECT_EQ(widths(svg, "s3").size(), 4u);  // in A, gelu(XA), B and the list
  EXPECT_THAT(svg, HasSubstr("all-reduce"));
  EXPECT_THAT(drawn_mlp(record(2, 1, 1, 0, {"--vocab-size 256", "--mock-data", "--swiglu"})),
              HasSubstr(">tp 1 holds columns 64-127 of G and of U, [64, 64]"));
  EXPECT_THAT(
      drawn_mlp(record(2, 1, 1, 0, {"--vocab-size 256", "--mock-data", "--sequence-parallel"})),
      HasSubstr("reduce-scatter"));
  EXPECT_THAT(drawn_mlp(record(1, 2, 1, 0)), HasSubstr("nothing to sum"));
}

// A rank's part of a state is a quarter. "pale" is held, but not used.
TEST_F(PlotFigureTest, ZeroStagesHoldAndUsePartitions) {
  const std::string svg = drawn(zero_figure(recorded(record(1, 1, 4, 2))));
  const double whole = widths(svg, "empty")[0];
  std::vector<std::string> panels;
  for (int stage = 0; stage <= 3; ++stage) {
    const size_t begin = svg.find(">ZeRO " + std::to_string(stage) + "<");
    panels.push_back(
        svg.substr(begin, svg.find(">ZeRO " + std::to_string(stage + 1) + "<") - begin));
  }
  const auto bars = [&](int stage, const std::string& style, double part) {
    const auto all = widths(panels[stage], style, whole);
    return std::ranges::count_if(all, [&](double w) { return std::abs(w - part) < 0.01; });
  };
  // Parameters: used whole in the forward and the backward, and in the step by stage 0. The gather
  // brings the others' updates at stages 1 and 2. At stage 3 they are never whole, but for the thin
  // lines of gathered units.
  EXPECT_EQ(bars(0, "s0", 1), 4 * 3);
  EXPECT_EQ(bars(1, "s0", 1), 4 * 3);
  EXPECT_EQ(bars(1, "s0", 0.25), 4);
  EXPECT_EQ(bars(2, "s0", 1), 4 * 3);
  EXPECT_EQ(bars(3, "s0", 1), 4 * 2);
  EXPECT_EQ(bars(3, "s0", 0.25), 4 * 3);
  // Gradients: whole up to stage 1. The optimizer's state is used in the step alone.
  EXPECT_EQ(bars(1, "s1", 1), 4 * 2);
  EXPECT_EQ(bars(2, "s1", 1), 0);
  EXPECT_EQ(bars(2, "s1", 0.25), 4 * 2);
  EXPECT_EQ(bars(0, "s2", 1), 4);
  EXPECT_EQ(bars(0, "s2 pale", 1), 4 * 4);
  EXPECT_EQ(bars(1, "s2", 0.25), 4);
  EXPECT_EQ(bars(1, "s2 pale", 0.25), 4 * 4);
  EXPECT_EQ(count(panels[0], ">all-reduce<"), 1u);
  EXPECT_EQ(count(panels[1], ">all-gather<"), 1u);
  EXPECT_EQ(count(panels[3], ">all-gather, reduce-scatter<"), 1u);
  EXPECT_REFUSES(zero_figure(recorded(record(1, 1, 9, 0))),
                 "expected up to 8 data parallel ranks, found 9");
}

TEST_F(PlotFigureTest, SavesAreDrawnFromTheirTimes) {
  EXPECT_REFUSES(save_figure(recorded(record(1, 1, 1, 0))),
                 "has no saves to draw: run pretrain_gpt with --save");
  const std::string svg = drawn(save_figure(recorded(
      record(1, 1, 1, 0) +
      R"({"event":"save","iteration":3,"seconds":{"copy":0.002,"gather":0,"serialise":0.004,)"
      R"("write":0.006,"fsync":0.008,"commit":0.01,"stall":0.005,"total":0.04}})"
      "\n"
      R"({"event":"save","iteration":6,"seconds":{"serialise":0.004,"write":0.004,"fsync":0.004,)"
      R"("commit":0.004,"stall":0.009,"total":0.009}})"
      "\n"
      R"({"event":"save","iteration":9,"seconds":{"copy":-1}})")));
  for (const char* text : {">step 3</text>", ">step 6</text>", ">40 ms</text>", ">9 ms</text>"})
    EXPECT_THAT(svg, HasSubstr(text));
  EXPECT_THAT(svg, Not(HasSubstr(">step 9</text>")));
  expect_ratio(svg, "s5", "empty", 10.0 / 40);  // the commit, of all
}

// Each sample has its number, and the first one its tokens, as inputs and as labels.
TEST_F(PlotFigureTest, DataIsDrawnAsTheTrainerReadsIt) {
  const std::string prefix = folder_ / "text";
  {
    IndexedDatasetBuilder builder(prefix, TokenType::kUint16);
    for (int document = 0; document < 4; ++document) {
      std::vector<int32_t> tokens(50);
      std::iota(tokens.begin(), tokens.end(), 100 * document);
      builder.add_document(tokens);
    }
    builder.finish();
  }
  const auto run_on = [&](const std::string& path) {
    const std::string run = record(1, 1, 2, 0,
                                   {"--split 1,0,0", "--tokenizer-type NullTokenizer",
                                    "--vocab-size 999", "--eval-iters 0", "--data-path " + path});
    return recorded(replaced(run, "\"vocabulary\":256", "\"vocabulary\":1000"));
  };
  const std::string svg = drawn(data_figure(run_on(prefix)));
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
  EXPECT_REFUSES(data_figure(run_on("0.5 a 0.5 b")), "expected one data set, --data-path blends 2");
  EXPECT_REFUSES(data_figure(run_on(folder_ / "none")), "none.idx");
}

}  // namespace
}  // namespace anymesh
