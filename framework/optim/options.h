#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace anymesh {

class Optimizer;

// The constants of the optimizers of --optimizer. Their headers have the updates.

// AdamW (arXiv:1711.05101).
struct AdamOptions {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
};

struct SgdOptions {
  double momentum = 0.9;
};

// Lion (arXiv:2302.06675).
struct LionOptions {
  double beta1 = 0.9, beta2 = 0.99;
};

// Muon (kellerjordan.github.io/posts/muon). The defaults are DeepSpeed's.
struct MuonOptions {
  double momentum = 0.95;
  bool nesterov = true;
  int newton_schulz_steps = 5;
  bool fp32 = false;                         // Newton-Schulz in fp32 in place of bf16
  std::string scale_mode = "shape_scaling";  // | spectral | unit_rms_norm: Megatron's names
  double lr_scale = 1;                       // a matrix's learning rate over the others'
};

struct OptimizerConfig {
  std::string name = "adam";  // | sgd | lion | muon, or the name of `own`
  AdamOptions adam;
  SgdOptions sgd;
  LionOptions lion;
  MuonOptions muon;
  std::shared_ptr<const Optimizer> own;  // a program's (TrainingProgram); `name` may be its
};

}  // namespace anymesh
