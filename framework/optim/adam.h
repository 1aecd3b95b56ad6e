#pragma once

namespace anymesh {

// The constants of Adam's update (arXiv:1412.6980), which kernels/adamw_sweeps.h makes.
struct AdamOptions {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
};

}  // namespace anymesh
