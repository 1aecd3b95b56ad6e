#include <algorithm>
#include <map>

#include "framework/util/format.h"
#include "tools/plot/loss_plot.h"
#include "tools/plot/mesh_figure.h"
#include "tools/report/html.h"
#include "tools/report/sections.h"

namespace anymesh {
namespace {

// The plots' frame scrolls sideways on a narrow screen.
std::string figure(const std::string& svg) {
  return element("figure", svg, "tabindex=\"0\"") + "\n";
}

// Draws the mesh of a log, or says why it cannot be drawn.
std::string mesh_or_reason(const std::filesystem::path& log, const std::string& title) {
  try {
    return figure(figure_svg(mesh_figure(log.string()), title));
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
    if (!run.log || !run.curve) continue;
    for (const TrainingLog::Save& save : run.log->saves) ++steps[save.iteration].first;
    for (const TrainingLog::Save& load : run.log->loads) ++steps[load.iteration].second;
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

std::string loss_section(const RunFolder& folder) {
  std::vector<LossCurve> curves;
  for (const Run& run : folder.runs)
    if (run.curve) curves.push_back(*run.curve);
  if (curves.empty())
    return section("Loss", "", absent("No curve: train with <code>--loss-csv FILE</code>."));
  return section("Loss",
                 curves.size() > 1 ? "Curves lie over each other. A band of alternating colours "
                                     "means that they are the same."
                                   : "",
                 figure(loss_plot_svg("Training loss", curves, marks_of(folder, curves))));
}

std::string mesh_section(const RunFolder& folder) {
  std::vector<std::pair<std::string, std::string>> meshes;  // a title with the names of its runs
  std::vector<std::string> figures;
  for (const Run& run : folder.runs) {
    if (!run.log) continue;
    const Topology& mesh = run.log->mesh;
    const std::string title = string_printf("tp %d, pp %d, dp %d, ZeRO %d", mesh.tp_size,
                                            mesh.pp_size, mesh.dp_size, run.log->zero_stage);
    const auto known = std::ranges::find(meshes, title, [](auto& each) { return each.first; });
    if (known != meshes.end()) {
      known->second += ", " + run.name;
      continue;
    }
    meshes.emplace_back(title, run.name);
    figures.push_back(mesh_or_reason(run.log->path, title));
  }
  if (meshes.empty())
    return section("Mesh", "",
                   absent("No log: keep what <code>pretrain_gpt</code> prints in a file."));
  std::string folds;
  for (size_t i = 0; i < meshes.size(); ++i)
    folds += fold(meshes[i].first + element("small", escaped(meshes[i].second)), figures[i],
                  /*open=*/i == 0);
  return section("Mesh", "The part of each stage that a rank holds.", folds);
}

std::string timeline_section(const RunFolder& folder) {
  const auto traced = runs_with(folder, [](const Run& run) { return run.trace.has_value(); });
  if (traced.empty())
    return section("Timeline of a step", "",
                   absent("No trace: train with <code>--profile-step N --trace FILE</code>."));
  std::string timelines;
  for (const size_t run : traced) {
    timelines += element("h3", escaped(folder.runs[run].name)) + "\n" +
                 timeline_html(*folder.runs[run].trace);
    if (folder.runs[run].log && !folder.runs[run].log->profile.empty())
      timelines +=
          fold("Phases and operators", element("pre", escaped(folder.runs[run].log->profile)));
  }
  return section("Timeline of a step",
                 "A row for each rank. Phases inside another one are lower. Point at a phase for "
                 "its name and duration.",
                 timelines);
}

}  // namespace anymesh
