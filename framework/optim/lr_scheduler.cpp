#include "framework/optim/lr_scheduler.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "framework/util/errors.h"

namespace anymesh {
namespace {

// Returns the part of max_lr - min_lr that remains when a part of the decay is done. Exponential
// halves once, from 2 to 1, over 1.
double remaining(const std::string& style, double done) {
  if (style == "cosine") return 0.5 * (std::cos(std::numbers::pi * done) + 1.0);
  if (style == "exponential") return 2.0 * std::pow(0.5, done) - 1.0;
  if (style == "minus_sqrt") return 1.0 - std::sqrt(done);
  return 1.0 - done;
}

}  // namespace

double LrSchedule::at(double samples) const {
  if (factor) {
    const double times = factor(samples);
    if (!(times >= 0 && std::isfinite(times)))
      throw_error("the learning-rate schedule \"", style, "\": the factor at ", samples,
                  " samples is ", times, ", expected a number from 0 on");
    return max_lr * times;
  }
  if (warmup_samples > 0 && samples <= warmup_samples) return max_lr * samples / warmup_samples;
  if (style == "constant") return max_lr;
  if (samples > decay_samples) return min_lr;
  if (style == "inverse-square-root") {
    const double warmup = std::max(warmup_samples, 1.0), now = std::max(samples, 1.0);
    return std::max(min_lr, max_lr * std::sqrt(warmup) / std::sqrt(now));
  }
  const bool wsd = style == "WSD";
  const double begin = wsd ? decay_samples - wsd_decay_samples : warmup_samples;
  const double done = std::max(0.0, (samples - begin) / (decay_samples - begin));
  return min_lr + remaining(wsd ? wsd_decay_style : style, done) * (max_lr - min_lr);
}

}  // namespace anymesh
