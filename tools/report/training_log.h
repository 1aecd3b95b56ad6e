// The output of a run of pretrain_gpt, as far as a report shows it. It may be anyone's file: lines
// of another form are left out, and numbers out of range do not count.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "framework/comm/topology.h"

namespace anymesh {

struct TrainingLog {
  struct Save {
    int64_t iteration = 0;
    std::string text;  // the line
  };
  struct Memory {  // MiB of the largest rank
    std::string part;
    double allocated = 0;
    std::optional<double> closed_form;
  };
  struct Traffic {
    std::string group, verb;
    int64_t calls = 0, bytes = 0, most_calls = 0, most_bytes = 0;  // of rank 0, of the busiest
  };

  std::filesystem::path path;
  Topology mesh{0, 0, 0};  // 0 x 0 x 0 if the log has none
  int zero_stage = 0;
  int vocabulary = 0;                                      // 0 = the log has none
  std::vector<std::pair<std::string, std::string>> facts;  // "model" -> "218496 parameters, ..."
  std::vector<std::pair<std::string, std::string>> flags;  // "--lr" -> "0.003", "--bf16" -> ""
  std::vector<Save> saves, loads;
  std::vector<Memory> memory;    // of --report-memory
  std::vector<Traffic> traffic;  // of --report-comm
  bool reports_traffic = false;  // true also if a step communicates nothing
  std::string profile;           // the table of --profile-step
  std::string validation;        // "2.3504", at the end
  std::string ending;            // the last line: "60 steps, 0.0311 s per step, ..."

  bool has_flag(std::string_view name) const;
  std::string flag(std::string_view name) const;  // empty for a switch, or if it was not given
};

// Returns whether a file that begins like this is such an output.
bool is_training_log(std::string_view start);
TrainingLog read_training_log(const std::filesystem::path& path);

}  // namespace anymesh
