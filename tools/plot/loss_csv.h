// Loss curves as the trainer's --loss-csv writes them, and the differences between them.
//
//   iteration,consumed_samples,lm_loss,learning_rate,grad_norm,loss_scale,tokens_per_s,elapsed_ms
//   1,8,6.22907066,0.000333333333,4.30044746,1,51234.5,4.99666
//
// Columns are found by name; only iteration and lm_loss are used. Reading throws, with file and
// line, for a missing column, a row of another width, iterations that do not increase, losses that
// are not finite numbers, and a file without rows.
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

// Splits a line of a CSV at its commas. There are no quotes.
std::vector<std::string> split_row(std::string line);

// Parses a number. Throws unless all of `text` is a finite number that is not negative; `where`
// begins the message.
double number_from_zero(const std::string& where, const std::string& text);

// Reads a curve. `argument` is "label=path", or "path", which is then its own label.
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
// Returns the first of the deltas that are largest relative to the reference. REQUIRES: there are
// some.
const LossDelta& largest_delta(const std::vector<LossDelta>& deltas);

// How far a run may be from the reference; negative = any distance.
struct Tolerance {
  double first = -1;  // relative, at the first common iteration
  double any = -1;    // relative, everywhere
  bool bitwise = false;
};

// Returns a line per curve: the first common iteration and its loss, deltas, rows compared.
std::string loss_table(const std::vector<LossCurve>& curves);

// Returns a message per run that is out of tolerance or has no iteration in common with the
// reference, curves[0]; empty = all is well.
std::vector<std::string> tolerance_failures(const std::vector<LossCurve>& curves,
                                            const Tolerance& tolerance);

}  // namespace anymesh
