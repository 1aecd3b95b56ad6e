#pragma once

#include <cstdlib>
#include <fstream>
#include <regex>
#include <sstream>

#include "framework/util/input_file.h"
#include "tests/support/count.h"
#include "tests/support/message_of.h"
#include "tests/support/temp_folder.h"

namespace anymesh {

// A test of programs that read and write files in a folder.
class PlotTest : public TempFolder {
 protected:
  std::string write(const std::string& name, const std::string& text) const {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return folder_ / name;
  }

  struct Outcome {
    int status;
    std::string out, err;
  };
  // Runs a command, with "@" in it for the folder.
  Outcome run(const std::string& command) const {
    const std::string here = folder_.string() + "/",
                      text = std::regex_replace(command, std::regex("@"), here);
    const int status = std::system((text + " >" + here + "out 2>" + here + "err").c_str());
    return {WEXITSTATUS(status), read_file(here + "out"), read_file(here + "err")};
  }
};

struct Rectangle {
  double x, y, width, height;
  std::string style;
};

// Returns the rectangles of an SVG whose class is of this regular expression.
inline std::vector<Rectangle> rectangles(const std::string& svg, const std::string& style) {
  const std::regex form(
      "<rect x=\"([-\\d.]+)\" y=\"([-\\d.]+)\" width=\"([\\d.]+)\" "
      "height=\"([\\d.]+)\" class=\"(" +
      style + ")\"");
  std::vector<Rectangle> found;
  for (std::sregex_iterator at(svg.begin(), svg.end(), form), end; at != end; ++at)
    found.push_back({std::stod((*at)[1]), std::stod((*at)[2]), std::stod((*at)[3]),
                     std::stod((*at)[4]), (*at)[5]});
  return found;
}

// Returns the widths of the rectangles of a class, in units of `unit` pixels.
inline std::vector<double> widths(const std::string& svg, const std::string& style,
                                  double unit = 1) {
  std::vector<double> all;
  for (const Rectangle& each : rectangles(svg, style)) all.push_back(each.width / unit);
  return all;
}

// Returns the first line of a run's record, as pretrain_gpt --loss-csv writes it. `flags` are more
// than those that every run has.
inline std::string record(int tp, int pp, int dp, int zero,
                          const std::vector<std::string>& flags = {"--vocab-size 256",
                                                                   "--mock-data"}) {
  std::ostringstream text;
  text << R"({"event":"start","iteration":0,"mesh":{"tp":)" << tp << R"(,"pp":)" << pp
       << R"(,"dp":)" << dp << R"(,"ep":1},"parameters":218496,"largest_rank":60608,)"
       << R"("vocabulary":256,"facts":["mesh: tensor","model: 218496 parameters"],)"
       << R"("flags":["--tensor-model-parallel-size )" << tp
       << R"(","--pipeline-model-parallel-size )" << pp << R"(","--zero-stage )" << zero
       << R"(","--micro-batch-size 2","--global-batch-size )" << 8 * dp
       << R"(","--train-iters 60","--lr 0.003","--num-layers 16","--hidden-size 64",)"
       << R"("--num-attention-heads 8","--seq-length 32","--max-position-embeddings 32")";
  for (const std::string& flag : flags) text << ",\"" << flag << '"';
  text << "]}\n";
  return text.str();
}

// Replaces the one place of a text.
inline std::string replaced(std::string text, const std::string& from, const std::string& to) {
  EXPECT_EQ(count(text, from), 1u) << from;
  return text.replace(text.find(from), from.size(), to);
}

inline std::string event(const std::string& name, int rank, int micro_batch, double begin_ms,
                         double ms) {
  std::ostringstream text;
  text << R"({"name":")" << name << R"(","cat":"phase","ph":"X","pid":)" << rank
       << R"(,"tid":0,"ts":)" << 1e3 * begin_ms << R"(,"dur":)" << 1e3 * ms
       << R"(,"args":{"micro_batch":)" << micro_batch << "}}";
  return text.str();
}

inline std::string trace(const std::vector<std::string>& events) {
  std::string text = "{\"traceEvents\": [";
  for (const std::string& each : events) text += "\n" + each + ",";
  text.back() = '\n';
  return text + "]}\n";
}

}  // namespace anymesh
