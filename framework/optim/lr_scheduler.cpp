#include "framework/optim/lr_scheduler.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace anymesh {

double LrSchedule::at(double samples) const {
  if (warmup_samples > 0 && samples <= warmup_samples) return max_lr * samples / warmup_samples;
  if (style == "constant") return max_lr;
  if (samples > decay_samples) return min_lr;
  if (style == "inverse-square-root") {
    const double warmup = std::max(warmup_samples, 1.0), now = std::max(samples, 1.0);
    return std::max(min_lr, max_lr * std::sqrt(warmup) / std::sqrt(now));
  }
  const double done = (samples - warmup_samples) / (decay_samples - warmup_samples);
  const double remaining =
      style == "cosine" ? 0.5 * (std::cos(std::numbers::pi * done) + 1.0) : 1.0 - done;
  return min_lr + remaining * (max_lr - min_lr);
}

}  // namespace anymesh
