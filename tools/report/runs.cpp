#include <algorithm>
#include <cmath>

#include "framework/util/format.h"
#include "tools/report/sections.h"

namespace anymesh {
namespace {

bool has_record(const Run& run) { return run.record.has_value(); }

std::string mib_text(double bytes) { return string_printf("%.3f", bytes / (1 << 20)); }

std::string list_of(const std::vector<int64_t>& steps) {
  std::vector<std::string> texts;
  for (const int64_t step : steps) texts.push_back(std::to_string(step));
  if (texts.size() > 12) texts.erase(texts.begin() + 8, texts.end() - 1), texts[7] = "...";
  return joined(texts);
}

std::string difference(const LossCurve& first, const LossCurve& curve) {
  if (&first == &curve) return "";
  const auto deltas = loss_deltas(first, curve);
  if (deltas.empty()) return "no common iteration";
  const double most = largest_delta(deltas).relative;
  return most == 0 ? "none" : string_printf("%.1e, relative", most);
}

using Texts = std::vector<std::pair<const char*, std::string>>;  // a column and its text

void add_curve(const LossCurve& curve, const LossCurve& first, Texts& texts) {
  texts.emplace_back("iterations", string_printf("%ld to %ld", curve.rows.front().iteration,
                                                 curve.rows.back().iteration));
  texts.emplace_back("last loss", curve.rows.back().text);
  texts.emplace_back("difference to the first run", difference(first, curve));
}

void add_record(const RecordedRun& run, Texts& texts) {
  const auto given = [&](const char* flag) {
    return std::ranges::find(run.flags, flag, [](auto& each) { return each.first; }) !=
           run.flags.end();
  };
  std::vector<int64_t> saves;
  for (const RecordedRun::Save& save : run.saves) saves.push_back(save.iteration);
  texts.emplace_back("mesh", mesh_text(run));
  texts.emplace_back("precision", given("--bf16") ? "bf16" : given("--fp16") ? "fp16" : "fp32");
  texts.emplace_back("resumed at", list_of(run.resumes));
  texts.emplace_back("saved at", list_of(saves));
  if (run.validation)
    texts.emplace_back("last validation loss", string_printf("%.9g", *run.validation));
  if (run.peak_memory == 0) return;
  texts.emplace_back("time of a step", string_printf("%.4f s", run.seconds_per_step));
  texts.emplace_back("peak memory", string_printf("%.1f MiB of ", run.peak_memory / (1 << 20)) +
                                        run.peak_memory_of);
}

std::string memory_cell(const RecordedRun& run, const std::string& part) {
  const auto row = std::ranges::find(run.memory, part, &RecordedRun::Memory::part);
  if (row == run.memory.end()) return "";
  const std::string cell = mib_text(row->allocated);
  if (!row->closed_form) return cell;
  const double off = std::abs(row->allocated - *row->closed_form);
  if (off / (1 << 20) < 0.0005) return cell + "<small class=\"good\">= closed form</small>";
  return cell + element("small", "closed form " + mib_text(*row->closed_form),
                        off <= 0.02 * *row->closed_form ? "" : "class=\"warn\"");
}

// Returns a table with a row for each name among the runs' pairs, in the order in which they
// appear. Rows whose values differ are shaded.
HtmlTable table_of(const std::string& corner, const std::vector<const Run*>& runs,
                   RecordedRun::Pairs RecordedRun::*pairs) {
  std::vector<std::string> names;
  for (const Run* run : runs)
    for (const auto& [name, value] : (*run->record).*pairs)
      if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  HtmlTable table(row_of(corner, runs, run_heading));
  for (const std::string& name : names) {
    const auto cells = row_of(escaped(name), runs, [&](const Run& run) {
      std::string values;
      for (const auto& [each, value] : (*run.record).*pairs)
        if (each == name) values += (values.empty() ? "" : "\n") + (value.empty() ? "on" : value);
      return escaped(values);
    });
    const bool differ = std::count(cells.begin() + 1, cells.end(), cells[1]) < std::ssize(runs);
    table.add(cells, differ ? "differs" : "");
  }
  return table;
}

}  // namespace

std::string run_heading(const Run& run) {
  return (run.curve ? swatch(run.color) : "") + escaped(run.name);
}

std::vector<const Run*> runs_with(const RunFolder& folder,
                                  const std::function<bool(const Run&)>& has) {
  std::vector<const Run*> runs;
  for (const Run& run : folder.runs)
    if (has(run)) runs.push_back(&run);
  return runs;
}

std::vector<std::string> row_of(const std::string& first, const std::vector<const Run*>& runs,
                                const std::function<std::string(const Run&)>& cell) {
  std::vector<std::string> cells{first};
  for (const Run* run : runs) cells.push_back(cell(*run));
  return cells;
}

ReportSection problems_section(const RunFolder& folder) {
  std::string lines;
  for (const std::string& problem : folder.problems)
    lines += element("p", escaped(problem), "class=\"problem\"") + "\n";
  if (lines.empty()) return {};
  return {"Not read", "These files are left out.", lines};
}

// A row for each run, so that many fit, and a column for each fact that some run has.
ReportSection runs_section(const RunFolder& folder) {
  if (folder.runs.empty()) return {};
  std::vector<Texts> rows;
  std::vector<std::string> columns{""};
  for (const Run& run : folder.runs) {
    Texts& texts = rows.emplace_back();
    if (run.record) add_record(*run.record, texts);
    if (run.curve) add_curve(*run.curve, *folder.runs[0].curve, texts);
    for (const auto& [column, text] : texts)
      if (!text.empty() && std::ranges::find(columns, column) == columns.end())
        columns.emplace_back(column);
  }
  HtmlTable table(columns);
  for (size_t i = 0; i < rows.size(); ++i) {
    std::vector<std::string> cells(columns.size());
    cells[0] = run_heading(folder.runs[i]);
    for (const auto& [column, text] : rows[i])
      if (!text.empty())
        cells[std::ranges::find(columns, column) - columns.begin()] = escaped(text);
    table.add(cells);
  }
  return {"Runs", "", table.html("runs")};
}

ReportSection memory_section(const RunFolder& folder) {
  const auto runs =
      runs_with(folder, [](const Run& run) { return run.record && !run.record->memory.empty(); });
  if (runs.empty())
    return absent_section("Memory", "No record has it: train with <code>--report-memory</code>.");
  std::vector<std::string> parts;
  for (const Run* run : runs)
    for (const RecordedRun::Memory& row : run->record->memory)
      if (std::ranges::find(parts, row.part) == parts.end()) parts.push_back(row.part);
  HtmlTable table(row_of("MiB", runs, run_heading));
  for (const std::string& part : parts)
    table.add(row_of(escaped(part), runs,
                     [&](const Run& run) { return memory_cell(*run.record, part); }));
  return {"Memory",
          "MiB on the largest rank, beside the closed form that the mesh and the ZeRO stage give. "
          "Peaks have none.",
          table.html()};
}

ReportSection flags_section(const RunFolder& folder) {
  const auto runs = runs_with(folder, has_record);
  if (runs.empty()) return absent_section("Flags and environment", kNoRecord);
  const HtmlTable flags = table_of("flag", runs, &RecordedRun::flags),
                  facts = table_of("", runs, &RecordedRun::facts);
  return {"Flags and environment", "The flags that were given. Shaded rows differ.",
          facts.html("prose") + fold("Flags: " + std::to_string(flags.rows()), flags.html(),
                                     /*open=*/folder.runs.size() <= 1)};
}

}  // namespace anymesh
