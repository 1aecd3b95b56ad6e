#pragma once

#include <functional>
#include <string>

namespace anymesh {

inline constexpr const char* kLrDecayStyles[] = {"constant", "linear", "cosine",
                                                 "inverse-square-root", "WSD"};

// The learning rate as a pure function of the samples consumed by updates so far. Only the options
// and that number need saving, and the rate is the same at every batch size and mesh. Warmup rises
// linearly from 0 to max_lr; then the rate decays to min_lr at decay_samples. (Megatron-LM's
// OptimizerParamScheduler also counts its steps in samples.)
struct LrSchedule {
  double max_lr = 0, min_lr = 0;
  double warmup_samples = 0, decay_samples = 0;
  std::string style = "linear";  // of kLrDecayStyles, or the name of one's own

  // WSD (arXiv:2404.06395): warmup, then max_lr, which falls over the last of decay_samples.
  double wsd_decay_samples = 0;
  std::string wsd_decay_style = "exponential";  // linear | cosine | exponential | minus_sqrt

  // A schedule of one's own, as PyTorch's LambdaLR: it multiplies max_lr, and of the fields above
  // only max_lr and style count, by which a checkpoint knows it.
  std::function<double(double samples)> factor;

  // Returns the rate of the step that begins when `samples` have been consumed. Throws
  // std::runtime_error if `factor` returns no number from 0 on.
  double at(double samples) const;
};

}  // namespace anymesh
