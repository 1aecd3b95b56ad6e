#include "tools/plot/loss_csv.h"

#include <algorithm>
#include <cmath>

#include "framework/util/errors.h"
#include "framework/util/format.h"
#include "framework/util/input_file.h"
#include "framework/util/parse_number.h"

namespace anymesh {
namespace {

std::vector<LossRow> read_rows(const std::string& path) {
  InputFile file(path);
  std::vector<std::vector<std::string>> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(split_row(std::move(line)));
  const std::vector<std::string> header = lines.empty() ? split_row("") : lines[0];
  size_t at = 0;  // the line being read
  const auto fail = [&](const std::string& what) { throw_error(path, ":", at + 1, ": ", what); };
  const auto column = [&](const std::string& name) {
    const auto found = std::ranges::find(header, name);
    if (found == header.end()) fail("no column '" + name + "' in the header");
    return found - header.begin();
  };
  const auto iteration = column("iteration"), loss = column("lm_loss");
  if (lines.size() == 1) fail("no rows after the header");
  std::vector<LossRow> rows;
  for (at = 1; at < lines.size(); ++at) {
    const std::vector<std::string>& fields = lines[at];
    if (fields.size() != header.size())
      fail("expected " + std::to_string(header.size()) + " fields as in the header, got " +
           std::to_string(fields.size()));
    LossRow row{.text = fields[loss]};
    row.iteration = parse_number<int64_t>(fields[iteration]).value_or(-1);
    if (row.iteration < 0) fail("iteration '" + fields[iteration] + "' is not a number from 0 on");
    if (!rows.empty() && row.iteration <= rows.back().iteration)
      fail("iteration " + fields[iteration] + " does not come after " +
           std::to_string(rows.back().iteration));
    row.loss = parse_number<double>(row.text).value_or(NAN);
    if (!std::isfinite(row.loss)) fail("lm_loss '" + row.text + "' is not a finite number");
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace

std::vector<std::string> split_row(std::string line) {
  if (!line.empty() && line.back() == '\r') line.pop_back();
  const auto fields = split(line, ',');
  if (fields.empty()) return {""};
  return {fields.begin(), fields.end()};
}

double number_from_zero(const std::string& where, const std::string& text) {
  const auto value = parse_number<double>(text);
  if (!value || !std::isfinite(*value) || *value < 0)
    throw_error(where, ": expected a number from 0 on");
  return *value;
}

LossCurve read_loss_csv(const std::string& argument) {
  const size_t equals = argument.find('=');
  const bool labelled = equals != std::string::npos && equals > 0;
  const std::string path = labelled ? argument.substr(equals + 1) : argument;
  return {labelled ? argument.substr(0, equals) : argument, read_rows(path), path};
}

std::vector<LossDelta> loss_deltas(const LossCurve& reference, const LossCurve& run) {
  std::vector<LossDelta> deltas;
  for (const LossRow& row : run.rows) {
    const auto other =
        std::ranges::lower_bound(reference.rows, row.iteration, {}, &LossRow::iteration);
    if (other == reference.rows.end() || other->iteration != row.iteration) continue;
    const double delta = std::abs(other->loss - row.loss);
    deltas.push_back({row.iteration, row.loss, delta,
                      delta == 0 ? 0 : delta / std::abs(other->loss), other->text == row.text});
  }
  return deltas;
}

const LossDelta& largest_delta(const std::vector<LossDelta>& deltas) {
  return *std::ranges::max_element(deltas, {}, &LossDelta::relative);
}

std::string loss_table(const std::vector<LossCurve>& curves) {
  size_t width = 5;
  for (const LossCurve& curve : curves) width = std::max(width, curve.label.size());
  const auto padded = [width](const std::string& label) {
    return label + std::string(width - label.size(), ' ');
  };
  std::string table = padded("run") +
                      "  iteration         loss    |rel. delta|    max |rel. delta|  "
                      "at iteration    rows\n";
  for (const LossCurve& curve : curves) {
    const std::vector<LossDelta> deltas = loss_deltas(curves[0], curve);
    table += padded(curve.label);
    if (deltas.empty()) {
      table += "  no iteration in common with " + curves[0].label + "\n";
      continue;
    }
    table += string_printf("  %9ld  %11.8g", deltas[0].iteration, deltas[0].loss);
    if (&curve != &curves[0]) {
      const LossDelta& largest = largest_delta(deltas);
      table += string_printf("  %14.3g  %18.3g  %12ld  %6zu", deltas[0].relative, largest.relative,
                             largest.iteration, deltas.size());
    }
    table += "\n";
  }
  return table;
}

std::vector<std::string> tolerance_failures(const std::vector<LossCurve>& curves,
                                            const Tolerance& tolerance) {
  std::vector<std::string> failures;
  for (size_t i = 1; i < curves.size(); ++i) {
    const std::string& label = curves[i].label;
    const std::vector<LossDelta> deltas = loss_deltas(curves[0], curves[i]);
    if (deltas.empty()) {
      failures.push_back(label + ": no iteration in common with " + curves[0].label);
      continue;
    }
    const auto check = [&](const LossDelta& delta, double limit, const char* flag) {
      if (limit >= 0 && delta.relative > limit)
        failures.push_back(label +
                           string_printf(": |relative delta| %.3g at iteration %ld exceeds %s %g",
                                         delta.relative, delta.iteration, flag, limit));
    };
    check(deltas[0], tolerance.first, "--first-tolerance");
    check(largest_delta(deltas), tolerance.any, "--tolerance");
    const auto first = std::ranges::find(deltas, false, &LossDelta::same_text);
    if (tolerance.bitwise && first != deltas.end())
      failures.push_back(label + ": not bitwise equal to " + curves[0].label +
                         ", first at iteration " + std::to_string(first->iteration));
  }
  return failures;
}

}  // namespace anymesh
