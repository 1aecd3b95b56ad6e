#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/support/count.h"
#include "tools/plot/loss_csv.h"
#include "tools/plot/loss_plot.h"
#include "tools/plot/svg.h"

namespace anymesh {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

const std::string kHeader =
    "iteration,consumed_samples,lm_loss,learning_rate,grad_norm,loss_scale,tokens_per_s,"
    "elapsed_ms\n";

class PlotLossTest : public testing::Test {
 protected:
  PlotLossTest() : folder(testing::TempDir() + "plot_loss_" + std::to_string(getpid()) + "/") {
    std::filesystem::create_directories(folder);
  }
  ~PlotLossTest() override { std::filesystem::remove_all(folder); }

  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(folder + name, std::ios::binary) << text;
    return folder + name;
  }

  // Writes a CSV with these losses, by iteration from `first` on.
  std::string csv(const std::string& name, const std::vector<std::string>& losses,
                  int first = 1) const {
    std::string text = kHeader;
    for (const std::string& loss : losses) {
      text += std::to_string(first++) + ",8," + loss + ",0.001,1,1,1,1\n";
    }
    return write(name, text);
  }

  std::string refused(const std::string& text) const {
    const std::string path = write("bad.csv", text);
    try {
      read_loss_csv(path);
    } catch (const std::exception& error) {
      const std::string message = error.what();
      EXPECT_EQ(message.rfind(path, 0), 0u) << message;
      return message.substr(path.size());
    }
    return "";
  }

  struct Outcome {
    int status;
    std::string out, err;
  };

  Outcome plot_loss(const std::string& arguments) const { return run(PLOT_LOSS, arguments); }

  Outcome run(const std::string& program, const std::string& arguments) const {
    const std::string command =
        program + " " + arguments + " >" + folder + "out 2>" + folder + "err";
    const int status = std::system(command.c_str());
    return {WEXITSTATUS(status), read(folder + "out"), read(folder + "err")};
  }

  static std::string read(const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }

  std::string folder;
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
  EXPECT_THROW(read_loss_csv(folder + "absent.csv"), std::runtime_error);
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
  EXPECT_EQ(svg.rfind("<svg ", 0), 0u);
  EXPECT_THAT(svg, HasSubstr(">1 &lt; 2 &amp; 3</text>"));
  EXPECT_THAT(svg, HasSubstr(">a&lt;b</text>"));
  EXPECT_EQ(count(svg, "<text"), count(svg, "</text>"));
  EXPECT_EQ(count(svg, "stroke-dasharray=\"9 9\""), 2u);
  EXPECT_EQ(count(svg, "stroke-dashoffset=\"-0\""), 1u);
  EXPECT_EQ(count(svg, "stroke-dashoffset=\"-9\""), 1u);
  EXPECT_THAT(svg, HasSubstr("lm loss| to ref"));
  EXPECT_THAT(svg, HasSubstr(">equal</text>"));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
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

TEST(LossPlot, MarksStandAtTheirStepsAndNotOnEachOther) {
  const std::vector<LossCurve> curves = {curve("ref", std::vector<double>(101, 4), 0)};
  const std::string svg = loss_plot_svg("t", curves, {{52, "resume"}, {50, "save, at night"}});
  // 0 to 100 are 660 pixels from 66 on. The first text would lie on the second line.
  EXPECT_THAT(
      svg, HasSubstr("<line x1=\"396.0\" y1=\"84.0\" x2=\"396.0\" y2=\"414.0\" class=\"axis\"/>"));
  EXPECT_THAT(svg, HasSubstr("<text x=\"400.0\" y=\"58.0\" class=\"tick\">save, at night</text>"));
  EXPECT_THAT(svg, HasSubstr("<text x=\"413.2\" y=\"72.0\" class=\"tick\">resume</text>"));
  EXPECT_THAT(svg, HasSubstr("Mark at iteration 50: save, at night.</desc>"));
  EXPECT_EQ(count(loss_plot_svg("t", curves), "Mark"), 0u);
}

TEST(LossPlot, LongCurvesAreThinned) {
  std::vector<double> losses;
  for (int i = 0; i < 100000; ++i) losses.push_back(5 + (i % 2));
  EXPECT_LT(loss_plot_svg("t", {curve("long", losses), curve("too", losses)}).size(), 200000u);
}

TEST_F(PlotLossTest, ProgramAnswersByExitCode) {
  const std::string a = csv("a.csv", {"4", "2"}), b = csv("b.csv", {"4", "2.5"});
  Outcome outcome = plot_loss("'x y'=" + a + " b=" + b + " --output " + folder + "o.svg --title T");
  EXPECT_EQ(outcome.status, 0);
  EXPECT_THAT(outcome.out, HasSubstr("x y"));
  EXPECT_EQ(outcome.err, "");
  EXPECT_THAT(read(folder + "o.svg"), HasSubstr(">T</text>"));

  EXPECT_EQ(plot_loss("--tolerance 0.25 " + a + " " + b).status, 0);
  outcome = plot_loss("--tolerance 0.2 r=" + a + " run=" + b);
  EXPECT_EQ(outcome.status, 1);
  EXPECT_EQ(outcome.err, "run: |relative delta| 0.25 at iteration 2 exceeds --tolerance 0.2\n");
  EXPECT_EQ(plot_loss("--first-tolerance 0 " + a + " " + b).status, 0);
  EXPECT_EQ(plot_loss("--bitwise " + a + " " + a).status, 0);
  EXPECT_EQ(plot_loss("--bitwise " + a + " " + b).status, 1);

  EXPECT_EQ(plot_loss("--output " + folder + "o.svg --mark 1=save --mark '2=a, b' " + a).status, 0);
  EXPECT_THAT(read(folder + "o.svg"), HasSubstr(">save</text>"));
  EXPECT_THAT(read(folder + "o.svg"), HasSubstr(">a, b</text>"));
  const auto refused_mark = [&](const std::string& flags) {
    const Outcome refusal = plot_loss(flags + " " + a);
    EXPECT_EQ(refusal.status, 2) << flags;
    return refusal.err;
  };
  const std::string to = "--output " + folder + "o.svg ";
  EXPECT_EQ(refused_mark(to + "--mark 3=x"),
            "plot_loss: --mark 3=x: expected a step from 1 to 2\n");
  for (const char* mark : {"save", "1=", "=x", "1.5=x"})
    EXPECT_EQ(refused_mark(to + "--mark " + mark),
              "plot_loss: --mark " + std::string(mark) + ": expected STEP=text\n");
  EXPECT_EQ(refused_mark("--mark 1=x"),
            "plot_loss: --mark has no effect without --output (see --help)\n");

  EXPECT_EQ(plot_loss("").status, 2);
  EXPECT_EQ(plot_loss("--colour red " + a).status, 2);
  EXPECT_EQ(plot_loss(folder + "absent.csv").status, 2);
  EXPECT_EQ(plot_loss("--output " + folder + "no/such.svg " + a).status, 2);
  outcome = plot_loss("--tolerance 1x " + a);
  EXPECT_EQ(outcome.status, 2);
  EXPECT_EQ(outcome.err, "plot_loss: --tolerance 1x: expected a number from 0 on\n");
  EXPECT_EQ(plot_loss("--help").status, 0);
}

// An output is neither an input nor a file of another kind, and a disk's limit is an error.
TEST_F(PlotLossTest, ReplacesSvgsAlone) {
  const std::string a = csv("a.csv", {"4", "2"}), notes = write("notes.txt", "thesis"),
                    before = read(a);
  const auto refused = [](const Outcome& outcome, const std::string& why) {
    EXPECT_EQ(outcome.status, 2);
    EXPECT_THAT(outcome.err, HasSubstr(why));
  };
  refused(plot_loss("--output " + a + " x=" + a), "--output " + a + " is an input, " + a);
  refused(plot_loss("--output " + notes + " " + a), "is not an SVG of ours");
  EXPECT_EQ(read(a), before);
  EXPECT_EQ(read(notes), "thesis");
  refused(run("ulimit -f 1; " PLOT_LOSS, "--output " + folder + "full.svg " + a),
          "full.svg: cannot write the file: cannot set ");
  EXPECT_FALSE(std::filesystem::exists(folder + "full.svg"));
  ASSERT_EQ(run(PLOT_LOSS, "--output " + folder + "full.svg " + a).status, 0);
  const std::string whole = read(folder + "full.svg");
  refused(run("ulimit -f 1; " PLOT_LOSS, "--output " + folder + "full.svg " + a), "File too large");
  EXPECT_EQ(read(folder + "full.svg"), whole);
}

}  // namespace
}  // namespace anymesh
