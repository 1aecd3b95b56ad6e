#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "framework/util/errors.h"
#include "tests/support/checkpoints.h"
#include "tools/report/html.h"
#include "tools/report/report_page.h"
#include "tools/report/sections.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr const char* kCsv =
    "iteration,consumed_samples,lm_loss,learning_rate,grad_norm,loss_scale,tokens_per_s,elapsed_"
    "ms\n"
    "1,8,5.5,0.001,1,1,1,1\n2,16,4.25,0.001,1,1,1,1\n";

// The output of a run of two dp ranks, with one step line.
constexpr const char* kLog =
    "mesh: tensor 1 x pipeline 1 x data 2 = 2 ranks, 1 threads per rank\n"
    "model: 218496 parameters, at most 218496 on a rank; vocabulary of 256, padded to 256\n"
    "data: 480 samples of 32 tokens to train on, of 480 prepared; none to validate on\n"
    "  --zero-stage 0\n  --micro-batch-size 1\n  --global-batch-size 8\n  --train-iters 60\n"
    "  --lr 0.003\n  --vocab-size 256\n  --mock-data\n  --loss-csv elsewhere/dp2.csv\n"
    "  --report-comm\n  --num-layers 4\n  --hidden-size 64\n  --num-attention-heads 4\n"
    "  --seq-length 32\n  --max-position-embeddings 32\n"
    "loaded c/global_step1: iteration 1, 8 samples consumed, learning rate 0.003\n"
    "iter  2/60  loss 4.2500  lr 2.78e-03  norm 1.769  38.9 ms  6580 tok/s  ETA 2 s\n"
    "saved c/global_step2 in 13 ms (3.00 MB at 231.00 MB/s)\n"
    "communication in the last step, calls and bytes of payload\n"
    "group      verb             rank 0          bytes  busiest rank          bytes\n"
    "dp         all_reduce            4         939528             4         939528\n"
    "done: 60 steps, 0.0233 s per step, peak memory of all ranks 147.6 MiB\n"
    "memory: MiB of the largest rank           allocated  closed form\n"
    "memory: parameters                                0.833        0.833\n"
    "memory: gradients                                 0.933        0.833\n"
    "memory: everything, peak                          4.024\n";

constexpr const char* kTrace =
    R"({"traceEvents": [
{"name":"process_name","ph":"M","pid":1,"args":{"name":"rank 1"}},
{"name":"forward","cat":"phase","ph":"X","ts":0,"dur":500.5,"pid":0,"tid":0},
{"name":"tp all_reduce","cat":"phase","ph":"X","ts":100,"dur":50,"pid":0,"tid":0},
{"name":"aten::mm","cat":"operator","ph":"X","ts":10,"dur":5,"pid":0,"tid":0},
{"name":"backward","cat":"phase","ph":"X","ts":500,"dur":1500,"pid":1,"tid":0}
]})";

class ReportTest : public testing::Test {
 protected:
  ReportTest() : folder(testing::TempDir() + "report_" + std::to_string(getpid()) + "/") {
    fs::remove_all(folder);
    fs::create_directories(folder + "run");
  }
  ~ReportTest() override { fs::remove_all(folder); }

  void write(const std::string& name, const std::string& text) const {
    fs::create_directories(fs::path(folder + name).parent_path());
    std::ofstream(folder + name, std::ios::binary) << text;
  }
  RunFolder read() const { return read_run_folders({folder + "run"}); }

  // Returns the message of a file that is left out, without its path.
  std::string problem(const std::string& name, const std::string& text) const {
    write("run/good.csv", kCsv);
    write("run/" + name, text);
    const RunFolder found = read();
    fs::remove(folder + "run/" + name);
    if (found.problems.size() != 1) return std::to_string(found.problems.size()) + " problems";
    const std::string path = folder + "run/" + name;
    EXPECT_THAT(found.problems[0], StartsWith(path));
    return found.problems[0].substr(path.size());
  }

  static std::string slurp(const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }
  int report(const std::string& arguments) const {
    const std::string command =
        std::string(REPORT) + " " + arguments + " >" + folder + "out 2>" + folder + "err";
    return WEXITSTATUS(std::system(command.c_str()));
  }
  std::string out() const { return slurp(folder + "out"); }
  std::string err() const { return slurp(folder + "err"); }

  std::string folder;
};

TEST(Html, MarkupInTextIsHarmless) {
  EXPECT_EQ(escaped("<img src=\"x\" onerror='a()'>&"),
            "&lt;img src=&quot;x&quot; onerror=&#39;a()&#39;&gt;&amp;");
  EXPECT_EQ(escaped("a\x1b[2J\xff"), "a\\x1b[2J\\xff");
  EXPECT_LT(escaped(std::string(1'000'000, '<')).size(), 10'000u);
}

TEST(Html, BytesHaveThreeDigits) {
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(999), "999 B");
  EXPECT_EQ(bytes_text(999.9), "1 kB");
  EXPECT_EQ(bytes_text(1234567), "1.23 MB");
}

TEST_F(ReportTest, ALogJoinsTheFilesThatItNames) {
  write("run/a.log", kLog);
  write("run/dp2.csv", kCsv);
  write("run/other.csv", "lm_loss,iteration\n3,1\n");
  write("run/a.json", kTrace);
  write("run/notes.txt", "nothing");
  const RunFolder found = read();
  ASSERT_EQ(found.runs.size(), 2u);
  EXPECT_EQ(found.runs[0].name, "a");  // the longer curve comes first
  EXPECT_TRUE(found.runs[0].log && found.runs[0].curve && found.runs[0].trace);
  EXPECT_EQ(found.runs[1].name, "other");
  EXPECT_FALSE(found.runs[1].log);
  EXPECT_THAT(found.problems, ElementsAre());
}

TEST_F(ReportTest, SeveralFoldersNameTheirRuns) {
  write("run/a.csv", kCsv);
  write("again/a.csv", kCsv);
  const RunFolder found = read_run_folders({folder + "run", folder + "again/"});
  ASSERT_EQ(found.runs.size(), 2u);
  EXPECT_EQ(found.runs[0].name, "run/a");
  EXPECT_EQ(found.runs[1].name, "again/a");
  const std::string loss = loss_section(found);
  EXPECT_THAT(loss, HasSubstr(">run/a</text>"));
  EXPECT_THAT(loss, HasSubstr(">again/a</text>"));
}

TEST_F(ReportTest, ShowsEverySectionOfARun) {
  write("run/dp2.log", kLog);
  write("run/dp2.csv", kCsv);
  write("run/dp2.json", kTrace);
  const RunFolder found = read();
  const std::string runs = runs_section(found);
  EXPECT_THAT(runs, HasSubstr("<td>1 x 1 x 2</td>"));
  EXPECT_THAT(runs, HasSubstr("<th scope=\"row\">resumed at</th><td>1</td>"));
  EXPECT_THAT(runs, HasSubstr("<th scope=\"row\">saved at</th><td>2</td>"));
  EXPECT_THAT(runs, HasSubstr("<td>0.0233 s</td>"));
  EXPECT_THAT(runs, HasSubstr("<td>of all ranks 147.6 MiB</td>"));
  const std::string loss = loss_section(found);
  EXPECT_THAT(loss, HasSubstr("<svg "));
  EXPECT_THAT(loss, HasSubstr(">resume</text>"));
  EXPECT_THAT(loss, HasSubstr(">save</text>"));
  EXPECT_THAT(mesh_section(found), HasSubstr("layers 0-3"));
  EXPECT_THAT(flags_section(found), HasSubstr("--hidden-size</th><td>64</td>"));
}

TEST_F(ReportTest, MarksAreFewAndWithinTheCurves) {
  std::string log = kLog;
  log.replace(log.find("iteration 1, 8"), 11, "iteration 9");
  write("run/dp2.log", log);
  write("run/dp2.csv", kCsv);
  EXPECT_THAT(loss_section(read()), Not(HasSubstr(">resume</text>")));
  log = kLog;
  std::string csv = "iteration,lm_loss\n";
  for (int step = 1; step <= 40; ++step) {
    log += "saved c/global_step" + std::to_string(step) + " in 13 ms\n";
    csv += std::to_string(step) + ",2\n";
  }
  write("run/dp2.log", log);
  write("run/dp2.csv", csv);
  EXPECT_THAT(loss_section(read()), HasSubstr(">resume</text>"));
  EXPECT_THAT(loss_section(read()), Not(HasSubstr(">save</text>")));
}

TEST_F(ReportTest, MemoryStandsBesideItsClosedForm) {
  write("run/a.log", kLog);
  const std::string memory = memory_section(read());
  EXPECT_THAT(memory, HasSubstr("<td>0.833<small class=\"good\">= closed form</small></td>"));
  EXPECT_THAT(memory, HasSubstr("<td>0.933<small class=\"warn\">closed form 0.833</small></td>"));
  EXPECT_THAT(memory, HasSubstr("everything, peak</th><td>4.024</td>"));
}

TEST_F(ReportTest, CommunicationStandsBesideItsClosedForm) {
  write("run/a.log", kLog);
  EXPECT_THAT(communication_section(read()),
              HasSubstr("<td>4 calls<small>939528 B</small><small class=\"good\">= closed form"));
  std::string log = kLog;
  log.replace(log.find("--seq-length 32"), 15, "--unknown-flag ");
  write("run/a.log", log);
  EXPECT_THAT(communication_section(read()), HasSubstr("unknown flag --unknown-flag"));
  log = kLog;
  log.replace(log.find("  --num-layers 4"), 16, "  --num-layers 3");
  write("run/a.log", log);
  EXPECT_THAT(communication_section(read()),
              HasSubstr("<small class=\"warn\">closed form 4 calls"));
}

TEST_F(ReportTest, ClosedFormRefusesSizesThatWouldOverflow) {
  std::string log = kLog;
  log.replace(log.find("--hidden-size 64"), 16, "--hidden-size 500000000");
  write("run/a.log", log);
  EXPECT_THAT(communication_section(read()), HasSubstr("the run is too large for it"));
  log = kLog;
  log.replace(log.find("--num-layers 4"), 14, "--num-layers 2000000000");
  write("run/a.log", log);
  EXPECT_THAT(communication_section(read()), HasSubstr("the run is too large for it"));
  log = kLog;
  log.replace(log.find("data 2"), 6, "data 9999");
  log.replace(log.find("pipeline 1"), 10, "pipeline 9999");
  write("run/a.log", log);
  EXPECT_THAT(communication_section(read()), HasSubstr("no mesh of up to a million ranks"));
}

TEST_F(ReportTest, TimelineHasARowForEachRank) {
  write("run/a.json", kTrace);
  const std::string timeline = timeline_section(read());
  EXPECT_THAT(timeline, HasSubstr("<span>rank 0</span>"));
  EXPECT_THAT(timeline, HasSubstr("<span>rank 1</span>"));
  EXPECT_THAT(timeline, HasSubstr("x=\"0.00\" y=\"0\" width=\"250.25\" height=\"26\""));
  EXPECT_THAT(timeline, HasSubstr("x=\"50.00\" y=\"4\" width=\"25.00\" height=\"18\""));
  EXPECT_THAT(timeline, HasSubstr("<title>tp all_reduce, 0.050 ms from 0.100</title>"));
  EXPECT_THAT(timeline, Not(HasSubstr("aten::mm")));
}

TEST_F(ReportTest, CheckpointsAreListedWithTheirLayout) {
  fs::copy(fixture("z1-bf16-tp2pp2dp1") / "checkpoint", folder + "run/ckpt",
           fs::copy_options::recursive);
  const std::string checkpoints = checkpoints_section(read());
  EXPECT_THAT(checkpoints, HasSubstr("ckpt/global_step"));
  EXPECT_THAT(checkpoints, HasSubstr("<td>ordinary checkpoint of ZeRO 1, tp 2, pp 2, dp 1<"));
  EXPECT_THAT(checkpoints, HasSubstr("</td><td>10</td><td>80</td><td>"));
  EXPECT_THAT(checkpoints, HasSubstr("mp_rank_00_model_states.pt"));
  for (const auto& entry : fs::recursive_directory_iterator(folder + "run/ckpt"))
    if (entry.path().extension() == ".pt") fs::resize_file(entry.path(), 100);
  EXPECT_THAT(checkpoints_section(read()), HasSubstr("cannot be read"));
}

TEST_F(ReportTest, SaysWhichFlagGivesWhatIsMissing) {
  write("run/a.csv", kCsv);
  const std::string page = report_page("", {folder + "run"}, read());
  for (const char* flag :
       {"--report-memory", "--report-comm", "--profile-step N --trace FILE", "--save FOLDER"})
    EXPECT_THAT(page, HasSubstr("<code>" + std::string(flag) + "</code>"));
  fs::remove(folder + "run/a.csv");
  write("run/a.log", kLog);
  EXPECT_THAT(loss_section(read()), HasSubstr("<code>--loss-csv FILE</code>"));
}

TEST_F(ReportTest, NothingOfAFileBecomesMarkup) {
  const std::string script = "<script>alert(1)</script>";
  std::string log = kLog;
  log.insert(log.find("  --lr"), "  --save " + script + "\nnote: " + script + "\n");
  log.insert(log.find("memory: gradients"), "memory: " + script + " 1.0\n");
  log.insert(log.find("dp         all_reduce"), script + " x 1 2 3 4\n");
  log += "done: " + script + ", 1 s per step, peak memory " + script + "\n";
  log.insert(log.find("iter  2/60"), "validation loss at the end: " + script + "\n");
  write("run/<b>&.log", log);
  write("run/<b>&.csv", kCsv);
  std::string trace = kTrace;
  write("run/<b>&.json", trace.replace(trace.find("forward"), 7, "<b>\\u0001"));
  write("run/bad<b>.csv", "iteration,lm_loss\n<b>,1\n");
  fs::create_directories(folder + "run/<b>step/zero");
  const std::string page = report_page(script, {folder + "run"}, read());
  EXPECT_THAT(page, Not(HasSubstr(script)));
  EXPECT_THAT(page, Not(HasSubstr("<b>")));
  EXPECT_THAT(page, HasSubstr("<title>&lt;script&gt;"));
  EXPECT_THAT(page, HasSubstr("&lt;b&gt;step"));
}

TEST_F(ReportTest, BrokenFilesAreLeftOutWithTheirNames) {
  EXPECT_THAT(problem("bad.csv", "iteration,lm_loss\n1,x\n"), StartsWith(":2: lm_loss 'x'"));
  EXPECT_EQ(problem("bad.json", "{\"traceEvents\": [{"), ": is no JSON from byte 19 on");
  EXPECT_EQ(problem("bad.json", "{\"traceEvents\": []}"), ": has no phases");
  const auto phase = [&](const std::string& fields) {
    return problem("bad.json",
                   "{\"traceEvents\": [{\"name\":\"f\",\"cat\":\"phase\"" + fields + "}]}");
  };
  const std::string wrong = ": phase 'f': ts, dur or pid is no number from 0 on";
  EXPECT_EQ(phase(""), wrong);
  EXPECT_EQ(phase(",\"ts\":-1,\"dur\":1,\"pid\":0"), wrong);
  EXPECT_EQ(phase(",\"ts\":1,\"dur\":1e300,\"pid\":0"), wrong);
  EXPECT_EQ(phase(",\"ts\":1,\"dur\":1,\"pid\":0.5"), wrong);
  EXPECT_EQ(phase(",\"ts\":1,\"dur\":1,\"pid\":\"x\""), wrong);
  EXPECT_EQ(phase(",\"ts\":1,\"dur\":1,\"pid\":0"), "0 problems");
}

TEST_F(ReportTest, DeepJsonAndManyRanksEndInAMessage) {
  EXPECT_THAT(problem("deep.json", "{\"traceEvents\": " + std::string(1'000'000, '[')),
              StartsWith(": is no JSON"));
  std::string ranks = "{\"traceEvents\": [";
  for (int rank = 0; rank < 5000; ++rank)
    ranks += (rank ? "," : "") + std::string("{\"cat\":\"phase\",\"ts\":0,\"dur\":1,\"pid\":") +
             std::to_string(rank) + "}";
  EXPECT_EQ(problem("many.json", ranks + "]}"), ": has more than 4096 ranks");
}

TEST_F(ReportTest, LinksAndPipesAreNotFollowed) {
  write("run/a.csv", kCsv);
  fs::create_directory_symlink("/", folder + "run/root");
  fs::create_symlink("/etc/passwd", folder + "run/passwd.csv");
  ASSERT_EQ(mkfifo((folder + "run/pipe.csv").c_str(), 0600), 0);
  EXPECT_EQ(read().runs.size(), 1u);
}

TEST_F(ReportTest, TooManyRunsAreRefused) {
  for (int i = 0; i < 65; ++i) write("run/" + std::to_string(i) + ".csv", kCsv);
  EXPECT_THROW(read(), UserError);
}

TEST_F(ReportTest, TheProgramAnswersByItsExitStatus) {
  write("run/a.csv", kCsv);
  const std::string run = folder + "run", html = folder + "report.html";
  EXPECT_EQ(report(run), 0);
  EXPECT_THAT(out(), StartsWith("<!DOCTYPE html>"));
  EXPECT_THAT(out(), HasSubstr("<h1>run</h1>"));
  EXPECT_EQ(report("--output " + html + " --title 'a < b' " + run), 0);
  EXPECT_EQ(out(), "");
  EXPECT_THAT(slurp(html), HasSubstr("<h1>a &lt; b</h1>"));
  EXPECT_EQ(report("--output " + html + " " + run), 0);  // its own report may be replaced
  EXPECT_EQ(report("--output " + run + "/a.csv " + run), 2);
  EXPECT_EQ(slurp(run + "/a.csv"), kCsv);

  EXPECT_EQ(report(""), 2);
  EXPECT_THAT(err(), HasSubstr("give at least one folder of a run"));
  EXPECT_EQ(report(folder + "absent"), 2);
  EXPECT_THAT(err(), HasSubstr("absent: is no folder of a run"));
  fs::create_directories(folder + "empty");
  EXPECT_EQ(report(folder + "empty"), 2);
  EXPECT_THAT(err(), HasSubstr("empty: holds no run"));

  write("run/cut.csv", "iteration,lm_loss\n1\n");
  EXPECT_EQ(report(run), 1);
  EXPECT_THAT(err(), HasSubstr("cut.csv:2: expected 2 fields"));
  EXPECT_THAT(out(), HasSubstr("cut.csv:2: expected 2 fields"));
}

}  // namespace
}  // namespace anymesh
