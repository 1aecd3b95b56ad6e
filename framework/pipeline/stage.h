#pragma once

#include <torch/types.h>

#include <vector>

#include "framework/param_spec.h"
#include "framework/pipeline/unit_runner.h"
#include "framework/random/dropout.h"

namespace anymesh {

// One micro-batch as a stage gets it. Only the first stage reads the tokens, only the last the
// labels.
struct MicroBatch {
  torch::Tensor tokens, labels;  // int64 [b, s]
  DropoutContext dropout;
};

// The layers that one rank holds: what pipelines, ZeRO and checkpoints see of a model. A new model
// implements this.
class StageModule {
 public:
  virtual ~StageModule() = default;

  // First stage: ignores `hidden`. Last stage: returns the micro-batch's mean loss, a scalar.
  // Others: hidden -> hidden.
  virtual torch::Tensor forward(const torch::Tensor& hidden, const MicroBatch& batch) = 0;

  // An uninitialised tensor of the shape and dtype that stages send each other.
  virtual torch::Tensor empty_hidden() const = 0;

  // In the order in which DeepSpeed would flatten them.
  virtual const std::vector<ParamSpec>& params() const = 0;

  // Through which forward() runs its units.
  UnitRunner& runner() { return runner_; }

 protected:
  UnitRunner runner_;
};

}  // namespace anymesh
