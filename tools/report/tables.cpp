#include <algorithm>
#include <cmath>

#include "framework/util/format.h"
#include "tools/plot/svg.h"
#include "tools/report/html.h"
#include "tools/report/sections.h"

namespace anymesh {
namespace {

bool has_log(const Run& run) { return run.log.has_value(); }

// Returns the value of a name in a list of pairs; empty if there is none.
std::string value_of(const std::vector<std::pair<std::string, std::string>>& pairs,
                     const std::string& name) {
  std::string values;
  for (const auto& [each, value] : pairs)
    if (each == name) values += (values.empty() ? "" : "\n") + (value.empty() ? "on" : value);
  return values;
}

// Returns the names of the runs' pairs, each once, in the order in which they appear.
template <class PairsOf>
std::vector<std::string> names_of(const RunFolder& folder, PairsOf pairs_of) {
  std::vector<std::string> names;
  for (const Run& run : folder.runs) {
    if (!run.log) continue;
    for (const auto& [name, value] : pairs_of(*run.log))
      if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  }
  return names;
}

// Adds a row of texts, one a run, unless all are empty.
void add_texts(HtmlTable& table, const std::string& name, std::vector<std::string> texts,
               bool mark_differences = false) {
  if (std::ranges::all_of(texts, &std::string::empty)) return;
  const bool differ = std::ranges::any_of(texts, [&](auto& text) { return text != texts[0]; });
  std::vector<std::string> cells = {escaped(name)};
  for (const std::string& text : texts) cells.push_back(text.empty() ? "&ndash;" : escaped(text));
  table.add(cells, differ && mark_differences ? "differs" : "");
}

// Adds a row for a text that may be made of each run.
template <class TextOf>
void add_row(HtmlTable& table, const RunFolder& folder, const std::string& name, TextOf text_of) {
  std::vector<std::string> texts;
  for (const Run& run : folder.runs) texts.push_back(text_of(run));
  add_texts(table, name, std::move(texts));
}

std::string iterations(const std::vector<TrainingLog::Save>& saves) {
  std::vector<std::string> steps;
  for (const TrainingLog::Save& save : saves) steps.push_back(std::to_string(save.iteration));
  if (steps.size() > 12) steps.erase(steps.begin() + 8, steps.end() - 1), steps[7] = "...";
  return joined(steps);
}

std::string precision(const TrainingLog& log) {
  return log.has_flag("--bf16") ? "bf16" : log.has_flag("--fp16") ? "fp16" : "fp32";
}

// "60 steps, 0.0311 s per step, ..." -> "0.0311 s"
std::string seconds_per_step(const TrainingLog& log) {
  const size_t end = log.ending.find(" per step");
  const size_t begin = log.ending.rfind(", ", end);
  return end == std::string::npos || begin == std::string::npos
             ? ""
             : log.ending.substr(begin + 2, end - begin - 2);
}

std::string peak_memory(const TrainingLog& log) {
  const size_t at = log.ending.find("peak memory ");
  return at == std::string::npos ? "" : log.ending.substr(at + 12);
}

std::string memory_cell(const TrainingLog& log, const std::string& part) {
  for (const auto& [name, allocated, closed_form] : log.memory) {
    if (name != part) continue;
    std::string cell = string_printf("%.3f", allocated);
    if (!closed_form) return cell;
    const double difference = allocated - *closed_form;
    // Both are printed with three digits.
    if (std::abs(difference) < 0.0005) return cell + "<small class=\"good\">= closed form</small>";
    const bool near = std::abs(difference) <= 0.02 * *closed_form;
    return cell + element("small", string_printf("closed form %.3f", *closed_form),
                          near ? "" : "class=\"warn\"");
  }
  return "&ndash;";
}

}  // namespace

std::string run_heading(const RunFolder& folder, size_t run) {
  const Run& which = folder.runs[run];
  const std::string color = run == 0 ? "hair" : series(run - 1);
  return (which.curve ? swatch(color) : "") + escaped(which.name);
}

std::vector<std::string> run_columns(const std::string& first, const RunFolder& folder,
                                     const std::vector<size_t>& runs) {
  std::vector<std::string> header = {first};
  for (const size_t run : runs) header.push_back(run_heading(folder, run));
  return header;
}

std::string problems_section(const RunFolder& folder) {
  std::string lines;
  for (const std::string& problem : folder.problems)
    lines += element("p", escaped(problem), "class=\"problem\"") + "\n";
  return lines.empty() ? "" : section("Not read", "These files are left out.", lines);
}

std::string runs_section(const RunFolder& folder) {
  if (folder.runs.empty()) return "";
  HtmlTable table(run_columns("", folder, runs_with(folder, [](const Run&) { return true; })));
  const auto of_log = [&](const std::string& name, auto text_of) {
    add_row(table, folder, name,
            [&](const Run& run) { return run.log ? text_of(*run.log) : std::string(); });
  };
  of_log("tensor x pipeline x data", [](const TrainingLog& log) {
    const Topology& mesh = log.mesh;
    return string_printf("%d x %d x %d", mesh.tp_size, mesh.pp_size, mesh.dp_size);
  });
  of_log("ZeRO stage", [](const TrainingLog& log) { return std::to_string(log.zero_stage); });
  of_log("precision", precision);
  add_row(table, folder, "iterations", [](const Run& run) {
    return run.curve ? string_printf("%ld to %ld", run.curve->rows.front().iteration,
                                     run.curve->rows.back().iteration)
                     : "";
  });
  of_log("resumed at", [](const TrainingLog& log) { return iterations(log.loads); });
  of_log("saved at", [](const TrainingLog& log) { return iterations(log.saves); });
  add_row(table, folder, "last loss",
          [](const Run& run) { return run.curve ? run.curve->rows.back().text : ""; });
  add_row(table, folder, "largest difference to the first run", [&](const Run& run) {
    const Run& first = folder.runs[0];
    if (!run.curve || &run == &first) return std::string();
    const auto deltas = loss_deltas(*first.curve, *run.curve);
    if (deltas.empty()) return std::string("no common iteration");
    const double most = largest_delta(deltas).relative;
    return most == 0 ? std::string("none") : string_printf("%.1e, relative", most);
  });
  of_log("validation loss at the end", [](const TrainingLog& log) { return log.validation; });
  of_log("time of a step", seconds_per_step);
  of_log("peak memory", peak_memory);
  return section("Runs", "", table.html());
}

std::string memory_section(const RunFolder& folder) {
  const auto runs =
      runs_with(folder, [](const Run& run) { return run.log && !run.log->memory.empty(); });
  if (runs.empty())
    return section("Memory", "", absent("No log has it: train with <code>--report-memory</code>."));
  std::vector<std::string> parts;
  for (const size_t run : runs)
    for (const TrainingLog::Memory& row : folder.runs[run].log->memory)
      if (std::ranges::find(parts, row.part) == parts.end()) parts.push_back(row.part);
  HtmlTable table(run_columns("MiB", folder, runs));
  for (const std::string& part : parts) {
    std::vector<std::string> cells = {escaped(part)};
    for (const size_t run : runs) cells.push_back(memory_cell(*folder.runs[run].log, part));
    table.add(cells);
  }
  return section("Memory",
                 "MiB on the largest rank, beside the closed form that the mesh and the ZeRO stage "
                 "give. Peaks have none.",
                 table.html());
}

std::string flags_section(const RunFolder& folder) {
  const auto runs = runs_with(folder, has_log);
  if (runs.empty())
    return section("Flags and environment", "",
                   absent("No log: keep what <code>pretrain_gpt</code> prints in a file."));
  const auto flags_of = [](const TrainingLog& log) -> auto& { return log.flags; };
  const auto facts_of = [](const TrainingLog& log) -> auto& { return log.facts; };
  HtmlTable flags(run_columns("flag", folder, runs)), facts(run_columns("", folder, runs));
  const auto fill = [&](HtmlTable& table, const auto& pairs_of) {
    for (const std::string& name : names_of(folder, pairs_of)) {
      std::vector<std::string> texts;
      for (const size_t run : runs)
        texts.push_back(value_of(pairs_of(*folder.runs[run].log), name));
      add_texts(table, name, std::move(texts), /*mark_differences=*/true);
    }
  };
  fill(flags, flags_of);
  fill(facts, facts_of);
  return section("Flags and environment",
                 "The flags that were given, as each log prints them. Shaded rows differ.",
                 facts.html("prose") + fold("Flags: " + std::to_string(flags.rows()), flags.html(),
                                            /*open=*/folder.runs.size() <= 1));
}

}  // namespace anymesh
