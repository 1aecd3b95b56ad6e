#pragma once

#include <cstdint>

namespace anymesh {

// fp16 gradients vanish below 6e-8, so the loss is multiplied by `scale` before the backward and
// the gradients are divided by it in the optimizer's sweep. A step whose gradients overflowed is
// skipped: no weight, no moment and no learning rate moves.
//
//   static    `scale` stays what it is
//   dynamic   an overflow halves it once `hysteresis` of them are used up, `window` steps without
//             one double it; at `min_scale` an overflow ends the run
//
// The rules and field names are those of DeepSpeed's DynamicLossScaler
// (deepspeed/runtime/fp16/loss_scaler.py). fp32 and bf16 have the static scale 1.
struct LossScaler {
  bool dynamic = false;
  double scale = 1;
  double min_scale = 1;
  int64_t window = 1000;
  int64_t hysteresis = 1;

  // Where it is; nothing of it matters to a static scale.
  int64_t iteration = 0;
  int64_t last_overflow = -1;
  int64_t hysteresis_left = 1;

  // After each step. False if the scale ought to fall and can't.
  bool update(bool overflow);
};

}  // namespace anymesh
