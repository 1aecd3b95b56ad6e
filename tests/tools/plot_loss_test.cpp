#include <cmath>

#include "tests/tools/plots.h"
#include "tools/plot/loss_csv.h"
#include "tools/plot/loss_plot.h"
#include "tools/plot/svg.h"

namespace anymesh {
namespace {

class PlotLossTest : public PlotTest {
 protected:
  // Writes a CSV with these losses, by iteration from `first` on.
  std::string csv(const std::string& name, const std::vector<std::string>& losses,
                  int first = 1) const {
    std::string text = "iteration,consumed_samples,lm_loss,learning_rate\n";
    for (const std::string& loss : losses)
      text += std::to_string(first++) + ",8," + loss + ",0.001\n";
    return write(name, text);
  }
  std::string refused(const std::string& text) const {
    const std::string path = write("bad.csv", text),
                      message = message_of([&] { read_loss_csv(path); });
    EXPECT_THAT(message, StartsWith(path));
    return message.substr(std::min(path.size(), message.size()));
  }
  Outcome plot_loss(const std::string& arguments) const { return run(PLOT_LOSS " " + arguments); }
};

LossCurve curve(const std::string& label, std::vector<double> losses, int64_t first = 1) {
  LossCurve curve{label, {}};
  for (const double loss : losses) curve.rows.push_back({first++, loss, std::to_string(loss)});
  return curve;
}

TEST_F(PlotLossTest, ReadsLabelsAndRows) {
  const std::string path = csv("a.csv", {"6.25", "5.5"}, 11);
  const LossCurve labelled = read_loss_csv("tp2, pp2=" + path);
  EXPECT_EQ(labelled.label, "tp2, pp2");
  ASSERT_EQ(labelled.rows.size(), 2u);
  EXPECT_EQ(labelled.rows[1].iteration, 12);
  EXPECT_EQ(labelled.rows[1].loss, 5.5);
  EXPECT_EQ(labelled.rows[1].text, "5.5");
  EXPECT_EQ(read_loss_csv(path).label, path);
}

TEST_F(PlotLossTest, FindsColumnsByNameAndAcceptsCarriageReturns) {
  const LossCurve curve = read_loss_csv("x=" + write("b.csv", "lm_loss,iteration\r\n3,7\r\n"));
  EXPECT_EQ(curve.rows[0].iteration, 7);
  EXPECT_EQ(curve.rows[0].loss, 3);
}

TEST_F(PlotLossTest, BadFilesAreRefusedWithTheLine) {
  EXPECT_EQ(refused(""), ":1: no column 'iteration' in the header");
  EXPECT_EQ(refused("iteration,loss\n"), ":1: no column 'lm_loss' in the header");
  EXPECT_EQ(refused("iteration,lm_loss\n"), ":1: no rows after the header");
  EXPECT_EQ(refused("iteration,lm_loss\n1,2\n3\n"),
            ":3: expected 2 fields as in the header, got 1");
  EXPECT_EQ(refused("iteration,lm_loss\n1,2,3\n"), ":2: expected 2 fields as in the header, got 3");
  EXPECT_EQ(refused("iteration,lm_loss\n1.5,2\n"), ":2: iteration '1.5' is not a number from 0 on");
  EXPECT_EQ(refused("iteration,lm_loss\n-1,2\n"), ":2: iteration '-1' is not a number from 0 on");
  EXPECT_EQ(refused("iteration,lm_loss\n2,2\n2,2\n"), ":3: iteration 2 does not come after 2");
  for (const char* loss : {"", "x", "1x", "nan", "inf", "1e999"}) {
    EXPECT_EQ(refused("iteration,lm_loss\n1," + std::string(loss) + "\n"),
              ":2: lm_loss '" + std::string(loss) + "' is not a finite number");
  }
  EXPECT_THROW(read_loss_csv(folder_ / "absent.csv"), std::runtime_error);
}

TEST(LossDeltas, AreTakenAtCommonIterations) {
  const std::vector<LossDelta> deltas =
      loss_deltas(curve("a", {4, 4, 4, 4}, 1), curve("b", {4, 5, 3}, 3));
  ASSERT_EQ(deltas.size(), 2u);
  EXPECT_EQ(deltas[0].iteration, 3);
  EXPECT_EQ(deltas[0].absolute, 0);
  EXPECT_TRUE(deltas[0].same_text);
  EXPECT_EQ(deltas[1].iteration, 4);
  EXPECT_EQ(deltas[1].absolute, 1);
  EXPECT_EQ(deltas[1].relative, 0.25);
  EXPECT_FALSE(deltas[1].same_text);
}

TEST(LossTable, HasOneLinePerCurve) {
  const std::string table =
      loss_table({curve("ref", {4, 2, 2}), curve("resumed", {2, 3}, 2), curve("other", {1}, 9)});
  std::istringstream lines(table);
  std::string header, ref, resumed, other;
  std::getline(lines, header);
  std::getline(lines, ref);
  std::getline(lines, resumed);
  std::getline(lines, other);
  EXPECT_THAT(header, HasSubstr("max |rel. delta|"));
  EXPECT_THAT(ref, testing::MatchesRegex("ref +1 +4"));
  EXPECT_THAT(resumed, testing::MatchesRegex("resumed +2 +2 +0 +0.5 +3 +2"));
  EXPECT_EQ(other, "other    no iteration in common with ref");
}

TEST(Tolerances, NameTheRunAndTheIteration) {
  const std::vector<LossCurve> curves = {curve("ref", {4, 4}), curve("near", {4, 5}),
                                         curve("same", {4, 4})};
  EXPECT_THAT(tolerance_failures(curves, {}), ElementsAre());
  EXPECT_THAT(tolerance_failures(curves, {.first = 0, .any = 0.25}), ElementsAre());
  EXPECT_THAT(tolerance_failures(curves, {.any = 0.2}),
              ElementsAre("near: |relative delta| 0.25 at iteration 2 exceeds --tolerance 0.2"));
  EXPECT_THAT(
      tolerance_failures({curve("ref", {4}), curve("off", {5})}, {.first = 0.2}),
      ElementsAre("off: |relative delta| 0.25 at iteration 1 exceeds --first-tolerance 0.2"));
  EXPECT_THAT(tolerance_failures(curves, {.bitwise = true}),
              ElementsAre("near: not bitwise equal to ref, first at iteration 2"));
  EXPECT_THAT(tolerance_failures({curve("ref", {4}), curve("late", {4}, 2)}, {}),
              ElementsAre("late: no iteration in common with ref"));
}

TEST(NiceTicks, AreMultiplesOfOneTwoOrFive) {
  EXPECT_THAT(nice_ticks(0, 10, 5), ElementsAre(0, 2, 4, 6, 8, 10));
  EXPECT_THAT(nice_ticks(1, 200, 8), ElementsAre(50, 100, 150, 200));
  EXPECT_THAT(nice_ticks(3.9, 6.4, 6), ElementsAre(4, 4.5, 5, 5.5, 6));
}

TEST(LossPlot, DrawsEveryCurveOnceAsLegendAndLabel) {
  const std::string svg = loss_plot_svg(
      "1 < 2 & 3", {curve("ref", {4, 3, 2}), curve("a<b", {4, 3.5, 2}), curve("c", {4, 3, 2})});
  for (const char* text : {">1 &lt; 2 &amp; 3</text>", ">a&lt;b</text>", "lm loss| to ref",
                           ">equal</text>", "a&lt;b: loss 4 at iteration 1, 2 at iteration 3"})
    EXPECT_THAT(svg, HasSubstr(text));
  EXPECT_EQ(count(svg, "<text"), count(svg, "</text>"));
  EXPECT_EQ(count(svg, "stroke-dasharray"), 2u);  // each other run fills the other's gaps
}

TEST(LossPlot, DegenerateCurvesStayFinite) {
  const std::vector<std::vector<LossCurve>> plots = {
      {curve("one point", {4})},
      {curve("flat", {4, 4}), curve("same", {4, 4})},
      {curve("zero", {0, 0}), curve("zero too", {0, 0})},
      {curve("close", {4, std::nextafter(4, 5)}, INT64_MAX - 9)},
      {curve("zero", {0, 0}), curve("far", {1e-300, 1e300})},
      {curve("a", {4}), curve("elsewhere", {4}, 1000000000)},
  };
  for (const std::vector<LossCurve>& curves : plots) {
    const std::string svg = loss_plot_svg("t", curves);
    EXPECT_THAT(svg, Not(HasSubstr("nan"))) << curves[0].label;
    EXPECT_THAT(svg, Not(HasSubstr("\"inf"))) << curves[0].label;
    EXPECT_LT(svg.size(), 20000u);
  }
}

// Returns the y of a text.
double height_of(const std::string& svg, const std::string& text) {
  std::smatch found;
  std::regex_search(svg, found, std::regex(" y=\"([\\d.]+)\" class=\"[a-z ]+\">" + text + "<"));
  return std::stod(found[1]);
}

TEST(LossPlot, MarksStandAtTheirStepsAndNotOnEachOther) {
  const std::vector<LossCurve> curves = {curve("ref", std::vector<double>(101, 4), 0)};
  const std::string svg =
      loss_plot_svg("t", curves, {{52, "resume"}, {50, "save, at night"}, {2, "save"}});
  // A text that would lie on the line of a later mark, or on the heading, goes up, and no line
  // crosses the heading.
  EXPECT_LT(height_of(svg, "save, at night"), height_of(svg, "resume"));
  EXPECT_LT(height_of(svg, "save"), height_of(svg, "lm loss") - 13);
  EXPECT_EQ(count(svg, "<line x1=\"79.2\""), 1u);
  EXPECT_THAT(svg, HasSubstr("Mark at iteration 50: save, at night. Mark at iteration 2: save."));
  EXPECT_EQ(count(loss_plot_svg("t", curves), "Mark"), 0u);
}

// A level widens the axis up to it, and is a line below the curves.
TEST(LossPlot, LevelsStandAtTheirLosses) {
  const std::vector<LossCurve> curves = {curve("ref", {4, 3, 2})};
  const std::string svg = loss_plot_svg("t", curves, {}, {{1, "floor"}, {4, "ln 55"}});
  EXPECT_GT(height_of(svg, "floor"), height_of(svg, "ln 55"));
  EXPECT_THAT(svg, HasSubstr("Line at the loss 1: floor. Line at the loss 4: ln 55."));
  EXPECT_EQ(count(svg, "class=\"axis\"/>"), 3u);  // with the panel's own
}

TEST(LossPlot, LongCurvesAreThinned) {
  std::vector<double> losses;
  for (int i = 0; i < 100000; ++i) losses.push_back(5 + (i % 2));
  EXPECT_LT(loss_plot_svg("t", {curve("long", losses), curve("too", losses)}).size(), 200000u);
}

TEST_F(PlotLossTest, ProgramAnswersByExitCode) {
  csv("a.csv", {"4", "2"});
  csv("b.csv", {"4", "2.5"});
  const Outcome plotted = plot_loss(
      "'x y'=@a.csv b=@b.csv --output @o.svg --title T --mark 1=save --mark '2=a, b' "
      "--level '1.5=floor'");
  EXPECT_EQ(plotted.status, 0);
  EXPECT_THAT(plotted.out, HasSubstr("x y"));
  for (const char* text : {">T</text>", ">save</text>", ">a, b</text>", ">floor</text>"})
    EXPECT_THAT(read_file(folder_ / "o.svg"), HasSubstr(text));
  for (const char* equal : {"--help", "--tolerance 0.25 @a.csv @b.csv", "--bitwise @a.csv @a.csv",
                            "--first-tolerance 0 @a.csv @b.csv"})
    EXPECT_EQ(plot_loss(equal).status, 0) << equal;
  const Outcome differs = plot_loss("--tolerance 0.2 r=@a.csv run=@b.csv");
  EXPECT_EQ(differs.status, 1);
  EXPECT_EQ(differs.err, "run: |relative delta| 0.25 at iteration 2 exceeds --tolerance 0.2\n");
  EXPECT_EQ(plot_loss("--bitwise @a.csv @b.csv").status, 1);
}

TEST_F(PlotLossTest, ProgramRefusesArguments) {
  csv("a.csv", {"4", "2"});
  const std::string mark = "expected STEP=text\n";
  for (const auto& [arguments, error] : std::vector<std::pair<std::string, std::string>>{
           {"", "give at least one CSV"},
           {"--colour red @a.csv", "unknown flag --colour"},
           {"@absent.csv", "absent.csv: cannot open"},
           {"--output @no/such.svg @a.csv", "such.svg: cannot write the file"},
           {"--tolerance 1x @a.csv", "--tolerance 1x: expected a number from 0 on"},
           {"--mark 1=x @a.csv", "--mark has no effect without --output (see --help)"},
           {"--level 1=x @a.csv", "--level has no effect without --output (see --help)"},
           {"--output @o.svg --level nan=x @a.csv", "--level nan=x: expected LOSS=text"},
           {"--output @o.svg --level 1 @a.csv", "--level 1: expected LOSS=text"},
           {"--output @o.svg --mark 3=x @a.csv", "--mark 3=x: expected a step from 1 to 2"},
           {"--output @o.svg --mark save @a.csv", mark},
           {"--output @o.svg --mark 1= @a.csv", mark},
           {"--output @o.svg --mark =x @a.csv", mark},
           {"--output @o.svg --mark 1.5=x @a.csv", mark}}) {
    const Outcome outcome = plot_loss(arguments);
    EXPECT_EQ(outcome.status, 2) << arguments;
    EXPECT_THAT(outcome.err, AllOf(StartsWith("plot_loss: "), HasSubstr(error)));
  }
}

// An output is neither an input nor a file of another kind, and a disk's limit is an error.
TEST_F(PlotLossTest, ReplacesSvgsAlone) {
  const std::string a = csv("a.csv", {"4", "2"}), before = read_file(a);
  write("notes.txt", "thesis");
  EXPECT_THAT(plot_loss("--output @a.csv x=@a.csv").err, HasSubstr("a.csv is an input, " + a));
  EXPECT_THAT(plot_loss("--output @notes.txt @a.csv").err, HasSubstr("is not an SVG of ours"));
  EXPECT_EQ(read_file(a), before);
  EXPECT_EQ(read_file(folder_ / "notes.txt"), "thesis");
  const std::string on_full_disk = "ulimit -f 1; " PLOT_LOSS " --output @full.svg @a.csv";
  EXPECT_THAT(run(on_full_disk).err, HasSubstr("full.svg: cannot write the file: cannot set "));
  EXPECT_FALSE(fs::exists(folder_ / "full.svg"));
  ASSERT_EQ(plot_loss("--output @full.svg @a.csv").status, 0);
  const std::string whole = read_file(folder_ / "full.svg");
  EXPECT_THAT(run(on_full_disk).err, HasSubstr("File too large"));
  EXPECT_EQ(read_file(folder_ / "full.svg"), whole);
}

}  // namespace
}  // namespace anymesh
