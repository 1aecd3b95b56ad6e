#include <sys/stat.h>

#include "framework/util/errors.h"
#include "tests/support/checkpoints.h"
#include "tests/tools/plots.h"
#include "tools/report/html.h"
#include "tools/report/sections.h"

namespace anymesh {
namespace {

constexpr const char* kCsv = "iteration,consumed_samples,lm_loss\n1,8,5.5\n2,16,4.25\n";

// The record of a run of two dp ranks that resumed at step 1 and saved at step 2.
std::string dp2() {
  return replaced(record(1, 1, 2, 0,
                         {"--vocab-size 256", "--mock-data", "--loss-csv elsewhere/dp2.csv",
                          "--report-comm"}),
                  "\"iteration\":0", "\"iteration\":1") +
         R"({"event":"save","iteration":2,"path":"c/global_step2","bytes":3000000}
{"event":"validation","iteration":2,"lm_loss":4.5}
{"event":"communication","rows":[{"group":"dp","verb":"all_reduce",)"
         R"("calls":4,"bytes":100,"most_calls":4,"most_bytes":100}]}
{"event":"profile","iteration":2,"table":"phase, ms"}
{"event":"end","seconds_per_step":0.0233,"peak_memory":1048576,"peak_memory_of":"all ranks"}
{"event":"memory","rows":[{"part":"parameters","bytes":2097152,"closed_form":2097152},)"
         R"({"part":"gradients","bytes":3145728,"closed_form":2097152},)"
         R"({"part":"everything, peak","bytes":4194304}]}
)";
}

class ReportTest : public PlotTest {
 protected:
  RunFolder found() const { return read_run_folders({folder_ / "run"}); }
  // Returns the message of a file that is left out, without its path.
  std::string problem(const std::string& name, const std::string& text) const {
    write("run/good.csv", kCsv);
    const std::string path = write("run/" + name, text);
    const RunFolder folder = found();
    fs::remove(path);
    if (folder.problems.size() != 1) return std::to_string(folder.problems.size()) + " problems";
    EXPECT_THAT(folder.problems[0], StartsWith(path));
    return folder.problems[0].substr(path.size());
  }
  Outcome report(const std::string& arguments) const { return run(REPORT " " + arguments); }
};

TEST(Html, MarkupInTextIsHarmless) {
  EXPECT_EQ(escaped("<img src=\"x\" onerror='a()'>&"),
            "&lt;img src=&quot;x&quot; onerror=&#39;a()&#39;&gt;&amp;");
  EXPECT_EQ(escaped("a\x1b[2J\xff"), "a\\x1b[2J\\xff");
  EXPECT_LT(escaped(std::string(1'000'000, '<')).size(), 10'000u);
}

TEST_F(ReportTest, ARecordJoinsTheFilesThatItNames) {
  write("run/a.jsonl", dp2());
  write("run/dp2.csv", kCsv);
  write("run/other.csv", "lm_loss,iteration\n3,1\n");
  write("run/a.json", trace({event("forward", 0, 0, 0, 1)}));
  write("run/notes.txt", "nothing");
  const RunFolder folder = found();
  ASSERT_EQ(folder.runs.size(), 2u);
  EXPECT_EQ(folder.runs[0].name, "a");  // the longer curve comes first
  EXPECT_TRUE(folder.runs[0].record && folder.runs[0].curve && folder.runs[0].trace);
  EXPECT_EQ(folder.runs[1].name, "other");
  EXPECT_FALSE(folder.runs[1].record);
  EXPECT_THAT(folder.problems, ElementsAre());
}

TEST_F(ReportTest, SeveralFoldersNameTheirRuns) {
  write("run/a.csv", kCsv);
  write("again/a.csv", kCsv);
  const std::string loss =
      loss_section(read_run_folders({folder_ / "run", folder_ / "again/"})).content;
  EXPECT_THAT(loss, HasSubstrs(">run/a</text>", ">again/a</text>"));
}

TEST_F(ReportTest, ShowsEverySectionOfARun) {
  write("run/dp2.jsonl", replaced(dp2(), "\"ep\":1", "\"ep\":2"));
  write("run/dp2.csv", kCsv);
  const RunFolder folder = found();
  const std::string runs = runs_section(folder).content, loss = loss_section(folder).content;
  EXPECT_THAT(runs, HasSubstr("dp2</th><td>tp 1, pp 1, dp 2, ep 2, ZeRO 0</td><td>fp32</td>"
                              "<td>1</td><td>2</td><td>4.5</td><td>0.0233 s</td>"
                              "<td>1.0 MiB of all ranks</td><td>1 to 2</td><td>4.25</td></tr>"));
  EXPECT_THAT(loss, HasSubstrs("<svg ", ">resume</text>", ">save<"));
  EXPECT_THAT(mesh_section(folder).content, HasSubstr("layers 0-15"));
  EXPECT_THAT(flags_section(folder).content, HasSubstr("--hidden-size</th><td>64</td>"));
  EXPECT_THAT(flags_section(folder).content, HasSubstr("model</th><td>218496 parameters</td>"));
}

// Many runs make the table of runs longer, not wider than the page.
TEST_F(ReportTest, RunsAreRows) {
  for (int i = 0; i < 20; ++i) write("run/r" + std::to_string(i) + ".csv", kCsv);
  const std::string runs = runs_section(found()).content;
  EXPECT_EQ(count(runs, "<tr>"), 21u);
  EXPECT_EQ(count(runs, "scope=\"col\""), 4u);
}

TEST_F(ReportTest, MarksAreFewAndWithinTheCurves) {
  write("run/dp2.jsonl", replaced(dp2(), "\"iteration\":1,", "\"iteration\":9,"));
  write("run/dp2.csv", kCsv);
  EXPECT_THAT(loss_section(found()).content, Not(HasSubstr(">resume</text>")));
  std::string run = dp2(), csv = "iteration,lm_loss\n";
  for (int step = 1; step <= 40; ++step) {
    run += "{\"event\":\"save\",\"iteration\":" + std::to_string(step) + "}\n";
    csv += std::to_string(step) + ",2\n";
  }
  write("run/dp2.jsonl", run);
  write("run/dp2.csv", csv);
  EXPECT_THAT(loss_section(found()).content,
              AllOf(HasSubstr(">resume</text>"), Not(HasSubstr(">save</text>"))));
}

TEST_F(ReportTest, MemoryStandsBesideItsClosedForm) {
  write("run/a.jsonl", dp2());
  EXPECT_THAT(memory_section(found()).content,
              HasSubstrs("<td>2.000<small class=\"good\">= closed form</small></td>",
                         "<td>3.000<small class=\"warn\">closed form 2.000</small></td>",
                         "everything, peak</th><td>4.000</td>"));
}

TEST_F(ReportTest, CommunicationStandsBesideItsClosedForm) {
  const auto section = [&](const std::string& run) {
    write("run/a.jsonl", run);
    return communication_section(found()).content;
  };
  const std::string off = section(dp2());
  ASSERT_THAT(off, HasSubstr("<td>4 calls<small>100 B</small><small class=\"warn\">closed form "));
  // A run that counted what the closed form says.
  std::smatch form;
  ASSERT_TRUE(std::regex_search(off, form, std::regex("closed form (\\d+) calls, (\\d+) B")));
  std::string good = std::regex_replace(dp2(), std::regex("calls\":4"), "calls\":" + form.str(1));
  good = std::regex_replace(good, std::regex("bytes\":100"), "bytes\":" + form.str(2));
  EXPECT_THAT(section(good), HasSubstr("<small class=\"good\">= closed form"));
  EXPECT_THAT(section(replaced(dp2(), "--report-comm", "--unknown-flag")),
              HasSubstr("unknown flag --unknown-flag"));
  for (const auto& run : {replaced(dp2(), "--hidden-size 64", "--hidden-size 500000000"),
                          replaced(dp2(), "--num-layers 16", "--num-layers 2000000000")})
    EXPECT_THAT(section(run), HasSubstr("the run is too large for it"));
}

TEST_F(ReportTest, TimelineHasARowForEachRank) {
  write("run/a.json",
        trace({event("forward", 0, 0, 0, 0.5), event("tp all_reduce", 0, -1, 0.1, 0.05),
               "{\"name\":\"aten::mm\",\"cat\":\"operator\"}", event("backward", 1, 0, 0.5, 1.5)}));
  const std::string timeline = timeline_section(found()).content;
  EXPECT_THAT(timeline, AllOf(HasSubstr("<span>rank 0</span>"), HasSubstr("<span>rank 1</span>"),
                              HasSubstr("<title>tp all_reduce, 0.050 ms from 0.100</title>"),
                              Not(HasSubstr("aten::mm"))));
  const Rectangle forward = rectangles(timeline, "s0").at(0),
                  inside = rectangles(timeline, "s2").at(0);
  EXPECT_NEAR(forward.width / rectangles(timeline, "s1").at(0).width, 0.5 / 1.5, 0.01);
  EXPECT_GT(inside.y, forward.y);
}

TEST_F(ReportTest, CheckpointsAreListedWithTheirLayout) {
  fs::create_directories(folder_ / "run");
  fs::copy(fixture("z1-bf16-tp2pp2dp1") / "checkpoint", folder_ / "run/ckpt",
           fs::copy_options::recursive);
  EXPECT_THAT(checkpoints_section(found()).content,
              HasSubstrs("ckpt/global_step", "mp_rank_00_model_states.pt",
                         "<td>ordinary checkpoint of ZeRO 1, tp 2, pp 2, dp 1<",
                         "</td><td>10</td><td>80</td><td>"));
  for (const auto& entry : fs::recursive_directory_iterator(folder_ / "run/ckpt"))
    if (entry.path().extension() == ".pt") fs::resize_file(entry.path(), 100);
  EXPECT_THAT(checkpoints_section(found()).content, HasSubstr("cannot be read"));
}

TEST_F(ReportTest, SaysWhichFlagGivesWhatIsMissing) {
  write("run/a.csv", kCsv);
  const std::string page = report_page("", {folder_ / "run"}, found());
  for (const char* flag : {"--report-memory", "--report-comm", "--profile-step N --trace FILE",
                           "--save FOLDER", "--loss-csv FILE"})
    EXPECT_THAT(page, HasSubstr("<code>" + std::string(flag) + "</code>"));
}

TEST_F(ReportTest, NothingOfAFileBecomesMarkup) {
  const std::string script = "<script>alert(1)</script>";
  std::string run = dp2();
  for (const char* text :
       {"--report-comm", "mesh: tensor", "phase, ms", "all_reduce", "gradients", "all ranks"})
    run = replaced(run, text, script + text);
  write("run/<b>&.jsonl", run);
  write("run/<b>&.json", trace({event("<b>\x01", 0, 0, 0, 1)}));
  write("run/bad<b>.csv", "iteration,lm_loss\n<b>,1\n");
  fs::create_directories(folder_ / "run/<b>step/zero");
  const std::string page = report_page(script, {folder_ / "run"}, found());
  EXPECT_THAT(page, AllOf(Not(HasSubstr(script)), Not(HasSubstr("<b>")),
                          HasSubstr("<title>&lt;script&gt;"), HasSubstr("&lt;b&gt;step")));
}

TEST_F(ReportTest, BrokenFilesAreLeftOutWithTheirNames) {
  EXPECT_THAT(problem("bad.csv", "iteration,lm_loss\n1,x\n"), StartsWith(":2: lm_loss 'x'"));
  EXPECT_THAT(problem("bad.jsonl", "{\"event\":\"step\"}\n"), StartsWith(": expected the start"));
  EXPECT_THAT(problem("bad.json", "{\"traceEvents\": [\n{"),
              StartsWith(": is no trace from line 2 on: expected an event a line, and ]} at"));
  EXPECT_EQ(problem("bad.json", "{\"traceEvents\": [\n]}\n"), ": has no phases");
  EXPECT_THAT(problem("deep.json", "{\"traceEvents\": [\n" + std::string(1'000'000, '[')),
              StartsWith(": line 2: is JSON that nests deeper"));
  for (const char* fields :
       {"", ",\"ts\":-1,\"dur\":1,\"pid\":0", ",\"ts\":1,\"dur\":1e300,\"pid\":0",
        ",\"ts\":1,\"dur\":1,\"pid\":0.5", ",\"ts\":1,\"dur\":1,\"pid\":\"x\""})
    EXPECT_EQ(problem("bad.json",
                      trace({"{\"name\":\"f\",\"cat\":\"phase\"" + std::string(fields) + "}"})),
              ": phase 'f': ts, dur or pid is no number from 0 on");
  std::vector<std::string> ranks;
  for (int rank = 0; rank < 5000; ++rank) ranks.push_back(event("forward", rank, 0, 0, 1));
  EXPECT_EQ(problem("many.json", trace(ranks)), ": has more than 4096 ranks");
}

TEST_F(ReportTest, LinksAndPipesAreNotFollowed) {
  write("run/a.csv", kCsv);
  fs::create_directory_symlink("/", folder_ / "run/root");
  fs::create_symlink("/etc/passwd", folder_ / "run/passwd.csv");
  ASSERT_EQ(mkfifo((folder_ / "run/pipe.csv").c_str(), 0600), 0);
  EXPECT_EQ(found().runs.size(), 1u);
}

TEST_F(ReportTest, TooManyRunsAreRefused) {
  for (int i = 0; i < 65; ++i) write("run/" + std::to_string(i) + ".csv", kCsv);
  EXPECT_THROW(found(), UserError);
}

TEST_F(ReportTest, TheProgramAnswersByItsExitStatus) {
  write("run/a.csv", kCsv);
  Outcome outcome = report("@run");
  EXPECT_EQ(outcome.status, 0);
  EXPECT_THAT(outcome.out, AllOf(StartsWith("<!DOCTYPE html>"), HasSubstr("<h1>run</h1>")));
  EXPECT_EQ(report("--output @report.html --title 'a < b' @run").status, 0);
  EXPECT_THAT(read_file(folder_ / "report.html"), HasSubstr("<h1>a &lt; b</h1>"));
  EXPECT_EQ(report("--output @report.html @run").status, 0);  // its own report may be replaced
  EXPECT_EQ(report("--output @run/a.csv @run").status, 2);
  EXPECT_EQ(read_file(folder_ / "run/a.csv"), kCsv);

  fs::create_directories(folder_ / "empty");
  for (const auto& [arguments, error] : std::vector<std::pair<std::string, std::string>>{
           {"", "give at least one folder of a run"},
           {"@absent", "absent: is no folder of a run"},
           {"@empty", "empty: holds no run"}}) {
    outcome = report(arguments);
    EXPECT_EQ(outcome.status, 2);
    EXPECT_THAT(outcome.err, HasSubstr(error));
  }
  write("run/cut.csv", "iteration,lm_loss\n1\n");
  outcome = report("@run");
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, HasSubstr("cut.csv:2: expected 2 fields"));
  EXPECT_THAT(outcome.out, HasSubstr("cut.csv:2: expected 2 fields"));
}

}  // namespace
}  // namespace anymesh
