#include <algorithm>

#include "framework/util/errors.h"
#include "framework/util/format.h"
#include "tools/plot/figure.h"
#include "tools/plot/recorded_run.h"

namespace anymesh {
namespace {

constexpr double kSignGap = 32, kGatedGap = 8;  // between factors, and between G and U
constexpr double kMiddle = kTop + 130, kTokens = 70, kFfn = 170;  // heights; kFfn is a width too

struct Mlp {
  int tokens = 0;             // of a micro-batch
  int hidden = 0, inner = 0;  // the widths of a token outside and inside
  int tp = 1;
  bool gated = false;  // SwiGLU: A is two matrices, G and U, side by side

  int slice() const { return inner / tp; }
  double hidden_size() const {  // in pixels
    return std::clamp(kFfn * hidden / inner, 26.0, 110.0);
  }
};

// Draws a matrix around the middle line, cut into columns or rows of the tp ranks' colours, with
// its name above it and its shape below.
std::string matrix(double x, double width, double height, const std::string& name,
                   const std::string& shape, int tp, bool columns) {
  const double y = kMiddle - height / 2;
  std::string svg;
  for (int rank = 0; rank < tp; ++rank) {
    const double w = width / tp, h = height / tp;
    svg += columns ? rectangle(x + w * rank, y, w - 1, height, series(rank))
                   : rectangle(x, y + h * rank, width, h - 1, series(rank));
  }
  if (tp == 0) svg += rectangle(x, y, width, height, "empty");
  return svg + text_at(x + width / 2, y - 8, "head mid", name) +
         text_at(x + width / 2, y + height + 16, "tick mid", shape);
}

std::string shape(int rows, int columns) { return string_printf("[%d, %d]", rows, columns); }

std::string product(const Mlp& mlp) {
  const double h = mlp.hidden_size();
  double x = kLeft;
  std::string svg;
  const auto draw = [&](double width, double height, const char* name, int rows, int columns,
                        int tp, bool by_columns) {
    svg += matrix(x, width, height, name, shape(rows, columns), tp, by_columns);
    x += width;
  };
  const auto sign = [&](const char* text) {
    svg += text_at(x + kSignGap / 2, kMiddle + 5, "title mid", text);
    x += kSignGap;
  };
  draw(h, kTokens, "X", mlp.tokens, mlp.hidden, 0, true);
  sign("\u00d7");
  draw(kFfn, h, mlp.gated ? "G" : "A", mlp.hidden, mlp.inner, mlp.tp, true);
  if (mlp.gated) x += kGatedGap;
  if (mlp.gated) draw(kFfn, h, "U", mlp.hidden, mlp.inner, mlp.tp, true);
  sign("\u2192");
  draw(kFfn, kTokens, mlp.gated ? "silu(XG) \u2218 XU" : "gelu(XA)", mlp.tokens, mlp.inner, mlp.tp,
       true);
  sign("\u00d7");
  draw(h, kFfn, "B", mlp.inner, mlp.hidden, mlp.tp, false);
  sign("\u2192");
  draw(h, kTokens, "Y", mlp.tokens, mlp.hidden, 0, true);
  return svg;
}

std::string holder(const Mlp& mlp, int rank, double y) {
  const int first = rank * mlp.slice(), last = first + mlp.slice() - 1;
  return rectangle(kLeft, y - 11, 13, 13, series(rank)) +
         text_at(kLeft + 20, y, "label",
                 string_printf("tp %d holds columns %d-%d of %s, %s, and rows %d-%d of B, %s", rank,
                               first, last, mlp.gated ? "G and of U" : "A",
                               shape(mlp.hidden, mlp.slice()).c_str(), first, last,
                               shape(mlp.slice(), mlp.hidden).c_str()));
}

}  // namespace

Figure tensor_figure(const RecordedRun& recorded) {
  const RunSettings run = settings_of(recorded);
  const int tp = recorded.mesh.tp_size;
  if (tp > 16) throw_error("expected up to 16 tensor parallel ranks, found ", tp);
  const Mlp mlp{.tokens = run.config.batch.micro_batch_size * run.gpt.seq_length,
                .hidden = run.gpt.hidden_size,
                .inner = run.gpt.ffn_hidden_size,
                .tp = tp,
                .gated = run.gpt.swiglu};
  const std::string equation = mlp.gated
                                   ? "Y = \u03a3\u1d62 (silu(X G\u1d62) \u2218 X U\u1d62) B\u1d62"
                                   : "Y = \u03a3\u1d62 gelu(X A\u1d62) B\u1d62",
                    sum = tp == 1 ? "one rank holds all: nothing to sum"
                          : run.config.parallel.sequence_parallel
                              ? "the sum is a reduce-scatter: each rank gets its part of the tokens"
                              : "the sum is an all-reduce: each rank gets all of Y";
  double y = kMiddle + kFfn / 2 + 56;
  std::string svg =
      product(mlp) + text_at(kLeft, y, "head", equation) + text_at(kLeft, y + 22, "label", sum);
  y += 22;
  for (int rank = 0; rank < tp; ++rank) svg += holder(mlp, rank, y += 24);
  return {
      string_printf("The MLP of a layer on %d tensor parallel rank%s", tp, tp > 1 ? "s" : ""),
      string_printf("%s. The first matrix is cut by columns and the second by rows, so that each "
                    "of %d ranks computes its term of the sum alone.",
                    equation.c_str(), tp),
      svg,
      y,
      {},
      std::max(kWidth, 3 * mlp.hidden_size() + (2 + mlp.gated) * kFfn + 4 * kSignGap + kGatedGap)};
}

}  // namespace anymesh
