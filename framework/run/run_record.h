// The record of a run: all that its text log says, for programs that read it (tools/plot). It lies
// beside the loss CSV, as loss.jsonl beside loss.csv, and has an object a line:
//
//   {"event":"start","iteration":0,"mesh":{"tp":2,"pp":1,"dp":4,"ep":1},"parameters":218496,
//    "largest_rank":109248,"vocabulary":256,"facts":["mesh: ..."],"flags":["--lr 0.003", ...]}
//   {"event":"step","iteration":1,"consumed_samples":8,"lm_loss":"5.54450941", ...}
//   {"event":"validation","when":"at","iteration":10,"lm_loss":2.35,"perplexity":10.5}
//   {"event":"evaluation","when":"at","iteration":10,"metrics":{"accuracy":0.93}}
//   {"event":"save","iteration":10,"path":...,"bytes":...,"seconds":{"copy":0.0, ...}}
//   {"event":"profile","iteration":30,"table":...}             --profile-step
//   {"event":"communication","rows":[{"group":"tp","verb":"all_reduce","calls":8,"bytes":1024,
//    "most_calls":8,"most_bytes":1024}, ...]}                  --report-comm; of the last step
//   {"event":"end","steps":60,"seconds_per_step":0.03, ...}
//   {"event":"memory","rows":[{"part":"parameters","bytes":873984,"closed_form":873984}, ...]}
//
// A step of a program with metrics of its own has them too, as "metrics":{"accuracy":0.93}.
//
// A start at an iteration above 0 is a resume. It continues the file, below an empty line: there
// may be steps above it that the run repeats. A line that a full disk or a kill cut off is no JSON.
#pragma once

#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "framework/comm/counting_communicator.h"
#include "framework/engine.h"
#include "framework/format/folder.h"
#include "framework/run/metrics.h"
#include "framework/zero/memory_report.h"

namespace anymesh {

// Keys stay in the order in which they are written.
using RecordLine = nlohmann::ordered_json;

class RunRecord {
 public:
  // The kind of file that a record may continue or replace.
  static OutputKind kind() { return {"the record of a run", "{\"event\":"}; }
  // Returns the record's path for a --loss-csv; empty if that is empty or no regular file.
  static std::string path_beside(const std::string& loss_csv);

  // Begins, or continues, the record beside a --loss-csv. Writes nothing if path_beside() is empty.
  // Throws c10::Error if the file cannot be opened.
  RunRecord(const std::string& loss_csv, const RecordLine& start);

  // Writes a line at once. Returns false if it could not (a full disk); errno has the reason.
  bool add(const RecordLine& line);
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::ofstream file_;
  bool line_is_open_ = false;  // what stands at the end needs a line end
};

// Returns the first line, without the model's numbers, facts and flags.
RecordLine start_of_record(const Topology& mesh, int64_t iteration);
RecordLine record_of(const StepReport& step, const Metrics& metrics);
RecordLine record_of(const Metrics& metrics);  // {"accuracy":0.93}; null stands for NaN
RecordLine record_of(const SaveReport& save);
RecordLine record_of(const std::vector<TrafficRow>& communication);
RecordLine record_of(const std::vector<MemoryPart>& memory);

}  // namespace anymesh
