// Loss curves as the trainer's --loss-csv writes them, and how far one is from another.
//
//   iteration,consumed_samples,lm_loss,learning_rate,grad_norm,loss_scale,tokens_per_s,elapsed_ms
//   1,8,6.22907066,0.000333333333,4.30044746,1,51234.5,4.99666
//
// Columns are found by name; only iteration and lm_loss are used. Refused, with file and line: a
// missing column, a row of another width, iterations that do not increase, losses that are not
// finite numbers, a file without rows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace anymesh {

struct LossRow {
  int64_t iteration = 0;
  double loss = 0;
  std::string text;  // the loss as written, for comparing bit by bit
};

struct LossCurve {
  std::string label;
  std::vector<LossRow> rows;  // by increasing iteration, never empty
  std::string path = "";
};

// The fields of a CSV's line, between its commas. No quotes.
std::vector<std::string> split_row(std::string line);

// Throws unless all of `text` is a finite number that is not negative; `where` begins the message.
double number_from_zero(const std::string& where, const std::string& text);

// `argument` is "label=path" or "path", which is its own label then.
LossCurve read_loss_csv(const std::string& argument);

// |a - b| of the losses, at an iteration that both curves have.
struct LossDelta {
  int64_t iteration = 0;
  double loss = 0;  // of the run
  double absolute = 0;
  double relative = 0;  // to the reference
  bool same_text = true;
};

std::vector<LossDelta> loss_deltas(const LossCurve& reference, const LossCurve& run);
// The first of those that are largest relative to the reference. REQUIRES: there are some.
const LossDelta& largest_delta(const std::vector<LossDelta>& deltas);

// What a run may differ by from the reference; negative = anything.
struct Tolerance {
  double first = -1;  // relative, at the first common iteration
  double any = -1;    // relative, everywhere
  bool bitwise = false;
};

// One line per curve: the first common iteration and its loss, deltas, rows compared.
std::string loss_table(const std::vector<LossCurve>& curves);

// One message per run that is out of tolerance or has no iteration in common with the reference,
// curves[0]; empty = all is well.
std::vector<std::string> tolerance_failures(const std::vector<LossCurve>& curves,
                                            const Tolerance& tolerance);

}  // namespace anymesh
