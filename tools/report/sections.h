// The sections of a report. Each shows what the folder has on its subject, or one line that says
// which flag would give it.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "tools/report/html.h"
#include "tools/report/run_folder.h"

namespace anymesh {

struct ReportSection {
  std::string heading, explanation;  // an empty heading: there is nothing to show
  std::string content;               // HTML
};

ReportSection problems_section(const RunFolder& folder);
ReportSection runs_section(const RunFolder& folder);
ReportSection loss_section(const RunFolder& folder);
ReportSection mesh_section(const RunFolder& folder);
ReportSection memory_section(const RunFolder& folder);
ReportSection timeline_section(const RunFolder& folder);
ReportSection communication_section(const RunFolder& folder);
ReportSection checkpoints_section(const RunFolder& folder);
ReportSection flags_section(const RunFolder& folder);

// Returns the page for the runs of `folders`. An empty title stands for their names.
std::string report_page(const std::string& title, const std::vector<std::filesystem::path>& folders,
                        const RunFolder& folder);

constexpr const char* kNoRecord =
    "No record of a run: train with <code>--loss-csv FILE</code>, which writes one beside FILE.";
// "tp 2, pp 2, dp 1, ep 2, ZeRO 1"; ep of experts alone.
std::string mesh_text(const RecordedRun& run);

// A section in whose place the reader finds the flag that gives it.
inline ReportSection absent_section(const std::string& heading, const std::string& html) {
  return {heading, "", absent(html)};
}

// Returns a run's name, in HTML, in the colour that its loss curve has.
std::string run_heading(const Run& run);

// Returns the runs that have something.
std::vector<const Run*> runs_with(const RunFolder& folder,
                                  const std::function<bool(const Run&)>& has);

// Returns a row of a table with a column for each of these runs: its first cell, and each run's.
// The header has run_heading() as `cell`.
std::vector<std::string> row_of(const std::string& first, const std::vector<const Run*>& runs,
                                const std::function<std::string(const Run&)>& cell);

}  // namespace anymesh
