#include <algorithm>
#include <map>

#include "framework/util/format.h"
#include "tools/plot/figure.h"
#include "tools/plot/loss_plot.h"
#include "tools/report/sections.h"

namespace anymesh {
namespace {

// The plots' frame scrolls sideways on a narrow screen.
std::string figure(const std::string& svg) {
  return element("figure", svg, "tabindex=\"0\"") + "\n";
}

// Draws the mesh of a run, or says why it cannot be drawn.
std::string mesh_or_reason(const RecordedRun& run, const std::string& title) {
  try {
    return figure(figure_svg(mesh_figure(run), title));
  } catch (const std::exception& error) {
    return absent(escaped(error.what()));
  }
}

// Returns a mark for each step at which runs saved or resumed. Too many saves are left out.
std::vector<Mark> marks_of(const RunFolder& folder, const std::vector<LossCurve>& curves) {
  constexpr size_t kMostMarks = 12;
  int64_t first = INT64_MAX, last = 0;
  for (const LossCurve& curve : curves) {
    first = std::min(first, curve.rows.front().iteration);
    last = std::max(last, curve.rows.back().iteration);
  }
  std::map<int64_t, std::pair<size_t, size_t>> steps;  // to the runs that saved, and resumed
  for (const Run& run : folder.runs) {
    if (!run.record || !run.curve) continue;
    for (const RecordedRun::Save& save : run.record->saves) ++steps[save.iteration].first;
    for (const int64_t step : run.record->resumes) ++steps[step].second;
  }
  std::vector<Mark> marks, resumes;
  for (const auto& [step, runs] : steps) {
    if (step < first || step > last) continue;
    const auto& [saved, resumed] = runs;
    const std::string resume = resumed > 1 ? std::to_string(resumed) + " resumes" : "resume";
    marks.push_back({step, resumed == 0 ? "save" : saved == 0 ? resume : "save, " + resume});
    if (resumed > 0) resumes.push_back({step, resume});
  }
  if (marks.size() > kMostMarks) marks = resumes;
  marks.resize(std::min(marks.size(), kMostMarks));
  return marks;
}

}  // namespace

std::string mesh_text(const RecordedRun& run) {
  const Topology& mesh = run.mesh;
  const std::string zero = run.flag("--zero-stage");
  return string_printf("tp %d, pp %d, dp %d", mesh.tp_size, mesh.pp_size, mesh.dp_size) +
         (mesh.ep_size > 1 ? ", ep " + std::to_string(mesh.ep_size) : "") + ", ZeRO " +
         (zero.empty() ? "0" : zero);
}

ReportSection loss_section(const RunFolder& folder) {
  std::vector<LossCurve> curves;
  for (const Run& run : folder.runs)
    if (run.curve) curves.push_back(*run.curve);
  if (curves.empty())
    return absent_section("Loss", "No curve: train with <code>--loss-csv FILE</code>.");
  return {"Loss",
          curves.size() == 1 ? ""
                             : "Curves lie over each other. A band of alternating colours means "
                               "that they are the same.",
          figure(loss_plot_svg("Training loss", curves, marks_of(folder, curves)))};
}

ReportSection mesh_section(const RunFolder& folder) {
  std::vector<const RecordedRun*> drawn;
  std::map<std::string, std::vector<std::string>> names;  // of the runs with a mesh
  for (const Run& run : folder.runs) {
    if (!run.record) continue;
    auto& same = names[mesh_text(*run.record)];
    if (same.empty()) drawn.push_back(&*run.record);
    same.push_back(run.name);
  }
  if (drawn.empty()) return absent_section("Mesh", kNoRecord);
  std::string folds;
  for (const RecordedRun* run : drawn) {
    const std::string mesh = mesh_text(*run);
    folds += fold(escaped(mesh) + element("small", escaped(joined(names[mesh]))),
                  mesh_or_reason(*run, mesh), /*open=*/run == drawn[0]);
  }
  return {"Mesh", "The part of each stage that a rank holds.", folds};
}

}  // namespace anymesh
