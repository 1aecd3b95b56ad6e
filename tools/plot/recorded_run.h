// A run, read from its record: the FILE.jsonl that pretrain_gpt --loss-csv FILE.csv writes, with an
// object a line (framework/run/run_record.h). Anyone may have written the file. A line that is no
// JSON was cut off and counts for nothing, nor do numbers out of range. The last start counts, with
// the steps up to it.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "framework/comm/topology.h"
#include "framework/config/config.h"
#include "models/gpt/gpt_config.h"
#include "tools/plot/loss_csv.h"

namespace anymesh {

// The parts of a save's time, in order.
inline constexpr std::array<const char*, 6> kSaveParts = {"copy",  "gather", "serialise",
                                                          "write", "fsync",  "commit"};

struct RecordedRun {
  struct Save {
    int64_t iteration = 0;
    std::array<double, 6> parts{};  // ms, of kSaveParts
    double stall = 0, total = 0;    // ms
  };
  struct Memory {  // bytes on the largest rank
    std::string part;
    double allocated = 0;
    std::optional<double> closed_form;
  };
  struct Traffic {  // of the last step
    std::string group, verb;
    int64_t calls = 0, bytes = 0, most_calls = 0, most_bytes = 0;  // of rank 0, of the busiest
  };
  using Pairs = std::vector<std::pair<std::string, std::string>>;

  std::filesystem::path path;
  Topology mesh;           // of at most a million ranks
  int64_t parameters = 0;  // of the largest rank
  int vocabulary = 0;      // 0 = unknown
  Pairs facts;             // "model" -> "218496 parameters, ..."
  Pairs flags;             // "--lr" -> "0.003", "--bf16" -> ""
  std::vector<LossRow> steps;
  std::vector<int64_t> resumes;
  std::vector<Save> saves;
  std::vector<Memory> memory;                    // of --report-memory
  std::optional<std::vector<Traffic>> traffic;   // of --report-comm
  std::string profile;                           // the table of --profile-step
  std::optional<double> validation;              // the last loss
  double seconds_per_step = 0, peak_memory = 0;  // of a run that ended; bytes
  std::string peak_memory_of;                    // "a rank" or "all ranks"

  std::string flag(std::string_view name) const;  // empty for a switch, or if it was not given
};

// Returns whether a file that begins like this is a record.
bool is_record(std::string_view start);

// Throws DamagedFile, with the path, for a record without a start or with a mesh of no ranks.
RecordedRun read_record(const std::filesystem::path& path);
// Returns the record that `path` is, or the one that lies beside this log: run.jsonl beside
// run.log. Throws UserError if there is none.
RecordedRun record_of(const std::filesystem::path& path);

// The settings of a run. Flags that were not given have their defaults.
struct RunSettings {
  Config config;
  GptConfig gpt;  // resolved
  BatchPlan plan;
};
// Throws UserError for a flag that pretrain_gpt does not have, and for settings that cannot be
// trained.
RunSettings settings_of(const RecordedRun& run);

}  // namespace anymesh
