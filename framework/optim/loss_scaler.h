#pragma once

#include <cstdint>

namespace anymesh {

// fp16 gradients vanish below 6e-8, so the loss is multiplied by `scale` before the backward and
// the gradients are divided by it in the optimizer's sweep. A step with overflowed gradients is
// skipped: weights, moments and learning rate do not change.
//
//   static    `scale` does not change
//   dynamic   the first `hysteresis` - 1 overflows are free, each later one halves `scale`;
//             `window` steps without one double it; at `min_scale` an overflow ends the run
//
// The rules and field names are those in DeepSpeed's DynamicLossScaler
// (deepspeed/runtime/fp16/loss_scaler.py). fp32 and bf16 have the static scale 1.
struct LossScaler {
  bool dynamic = false;
  double scale = 1;
  double min_scale = 1;
  int64_t window = 1000;
  int64_t hysteresis = 1;

  // The state of a dynamic scale; a static scale does not use it.
  int64_t iteration = 0;
  int64_t last_overflow = -1;
  int64_t hysteresis_left = 1;

  // Call this after each step. Returns false if the scale should fall but cannot.
  bool update(bool overflow);
};

}  // namespace anymesh
