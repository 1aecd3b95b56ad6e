// The contents of a folder of runs. Files are recognised by their contents, whatever their names:
//
//   a loss curve    a CSV with the columns of --loss-csv
//   a record        the .jsonl beside that CSV
//   a trace         JSON of --trace
//   a checkpoint    a folder that open_checkpoint() takes
//
// A record belongs to the curve and the trace that its --loss-csv and --trace name, else to those
// with its own name. The search goes four folders deep, follows no links and stays out of
// checkpoints. Files over 256 MiB, and files that break the rules of their kind, go to `problems`.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tools/plot/loss_csv.h"
#include "tools/plot/recorded_run.h"
#include "tools/plot/trace.h"

namespace anymesh {

struct Run {
  std::string name;
  std::string color = {};          // a class of svg.h, of its loss curve
  std::optional<LossCurve> curve;  // of the CSV, else of the record
  std::optional<RecordedRun> record;
  std::optional<Trace> trace;
};

struct FoundCheckpoint {
  std::string name;  // the path from the folder on
  std::filesystem::path path;
};

struct RunFolder {
  std::vector<Run> runs;  // the longest from the first iteration on is first: the reference
  std::vector<FoundCheckpoint> checkpoints;
  std::vector<std::string> problems;  // a message each, with the path
};

// Reads folders into one. With several, names begin with their folder's. Throws UserError for a
// path that is no folder, for folders with neither a curve nor a record, trace or checkpoint, and
// for more than 64 runs or 20000 entries.
RunFolder read_run_folders(const std::vector<std::filesystem::path>& folders);

}  // namespace anymesh
