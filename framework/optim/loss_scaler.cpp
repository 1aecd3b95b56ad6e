#include "framework/optim/loss_scaler.h"

#include <algorithm>

namespace anymesh {

bool LossScaler::update(bool overflow) {
  if (!dynamic) return true;
  constexpr double kFactor = 2;
  if (overflow) {
    last_overflow = iteration++;
    if (hysteresis_left > 1) {
      --hysteresis_left;
      return true;
    }
    const bool falls = scale > min_scale;
    scale = std::max(scale / kFactor, min_scale);
    return falls;
  }
  const int64_t stable = iteration++ - last_overflow - 1;  // since the overflow, before this step
  if (stable > 0 && stable % window == 0) {
    hysteresis_left = hysteresis;
    scale *= kFactor;
  }
  return true;
}

}  // namespace anymesh
