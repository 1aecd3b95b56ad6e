#include "tools/plot/loss_csv.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "framework/util/format.h"
#include "framework/util/input_file.h"
#include "framework/util/parse_number.h"
#include "tools/plot/svg.h"

namespace anymesh {
namespace {

std::vector<LossRow> read_rows(const std::string& path) {
  InputFile file(path);
  int line_number = 0;
  const auto fail = [&](const std::string& what) {
    throw std::runtime_error(path + ":" + std::to_string(std::max(line_number, 1)) + ": " + what);
  };
  std::vector<std::string> fields;
  const auto next_row = [&] {
    std::string line;
    if (!std::getline(file, line)) return false;
    ++line_number;
    fields = split_row(std::move(line));
    return true;
  };
  next_row();
  const std::vector<std::string> header = fields;
  const auto column = [&](const std::string& name) {
    const auto found = std::find(header.begin(), header.end(), name);
    if (found == header.end()) fail("no column '" + name + "' in the header");
    return found - header.begin();
  };
  const auto iteration = column("iteration"), loss = column("lm_loss");
  std::vector<LossRow> rows;
  while (next_row()) {
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
  if (rows.empty()) fail("no rows after the header");
  return rows;
}

}  // namespace

std::vector<std::string> split_row(std::string line) {
  if (!line.empty() && line.back() == '\r') line.pop_back();
  std::vector<std::string> fields;
  size_t begin = 0;
  for (size_t comma; (comma = line.find(',', begin)) != std::string::npos; begin = comma + 1) {
    fields.push_back(line.substr(begin, comma - begin));
  }
  fields.push_back(line.substr(begin));
  return fields;
}

double number_from_zero(const std::string& where, const std::string& text) {
  const auto value = parse_number<double>(text);
  if (!value || !std::isfinite(*value) || *value < 0)
    throw std::runtime_error(where + ": expected a number from 0 on");
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
  auto a = reference.rows.begin();
  auto b = run.rows.begin();
  while (a != reference.rows.end() && b != run.rows.end()) {
    if (a->iteration < b->iteration) {
      ++a;
    } else if (b->iteration < a->iteration) {
      ++b;
    } else {
      const double delta = std::abs(a->loss - b->loss);
      const double relative = delta == 0 ? 0 : delta / std::abs(a->loss);
      deltas.push_back({a->iteration, b->loss, delta, relative, a->text == b->text});
      ++a, ++b;
    }
  }
  return deltas;
}

const LossDelta& largest_delta(const std::vector<LossDelta>& deltas) {
  return *std::max_element(
      deltas.begin(), deltas.end(),
      [](const LossDelta& a, const LossDelta& b) { return a.relative < b.relative; });
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
    table += string_printf("  %9lld  %11.8g", static_cast<long long>(deltas[0].iteration),
                           deltas[0].loss);
    if (&curve != &curves[0]) {
      const LossDelta& largest = largest_delta(deltas);
      table += string_printf("  %14.3g  %18.3g  %12lld  %6zu", deltas[0].relative, largest.relative,
                             static_cast<long long>(largest.iteration), deltas.size());
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
        failures.push_back(label + ": |relative delta| " + number("%.3g", delta.relative) +
                           " at iteration " + std::to_string(delta.iteration) + " exceeds " + flag +
                           " " + number("%g", limit));
    };
    check(deltas[0], tolerance.first, "--first-tolerance");
    check(largest_delta(deltas), tolerance.any, "--tolerance");
    const auto differs = [](const LossDelta& delta) { return !delta.same_text; };
    const auto first = std::find_if(deltas.begin(), deltas.end(), differs);
    if (tolerance.bitwise && first != deltas.end()) {
      failures.push_back(label + ": not bitwise equal to " + curves[0].label +
                         ", first at iteration " + std::to_string(first->iteration));
    }
  }
  return failures;
}

}  // namespace anymesh
