#include "framework/optim/loss_scaler.h"
#include "tutorials/write_it/checks.h"

namespace write_it {
namespace {

// Runs steps, "x" for one that overflows and "." for one that does not.
void run(anymesh::LossScaler scaler, const std::string& steps) {
  const std::string input =
      (scaler.dynamic
           ? "window " + std::to_string(scaler.window) + ", hysteresis " +
                 std::to_string(scaler.hysteresis) + ", at least " + digits(scaler.min_scale)
           : std::string("static")) +
      ", begins at " + digits(scaler.scale) + ", steps " + steps;
  scaler.hysteresis_left = scaler.hysteresis;
  answer(input, "scale", [&] {
    std::vector<std::string> scales;
    for (const char step : steps) {
      const bool good = scaler.update(step == 'x');
      scales.push_back(digits(scaler.scale) + (good ? "" : ", cannot fall"));
    }
    return scales;
  });
}

}  // namespace

void loss_scaler() {
  run({.dynamic = true, .scale = 8, .window = 2}, "...x...");
  run({.dynamic = true, .scale = 8, .window = 2, .hysteresis = 2}, "xx...xx");
  run({.dynamic = true, .scale = 4, .min_scale = 2, .window = 5}, "xx");
  run({.dynamic = false, .scale = 8}, "..x.");
  for (const int64_t window : {1, 2, 3, 1000}) {
    for (const int64_t hysteresis : {1, 2, 3}) {
      for (unsigned pattern = 0; pattern < 1024; pattern += 7) {
        std::string steps;
        for (unsigned i = 0; i < 20; ++i) steps += pattern >> (i * 3 % 10) & 1 ? 'x' : '.';
        run({.dynamic = true, .scale = 64, .window = window, .hysteresis = hysteresis}, steps);
      }
    }
  }
}

}  // namespace write_it
