#pragma once

#include <torch/types.h>

#include <string>
#include <vector>

#include "framework/kernels/dropout.h"
#include "framework/param_spec.h"
#include "framework/pipeline/unit_runner.h"

namespace anymesh {

// One micro-batch for a stage. The first stage reads the inputs and the last the labels. A model
// whose ModelFacts ask for it has both on every stage.
struct MicroBatch {
  torch::Tensor inputs, labels;  // tokens, int64 [b, s]; or b rows of a data set of tensors
  DropoutContext dropout;
  // The gradient of the micro-batch's mean loss, with which a stage begins the backward of a loss
  // of its own, such as a router's; 0 in evaluation. The pipeline sets it.
  double loss_scale = 0;
  // The run of the stage's layers that forward() runs, below chunks(). The pipeline sets it.
  int chunk = 0;
};

// The layers that one rank holds, and the interface of a model to pipelines, ZeRO and checkpoints.
// A new model implements this.
class StageModule {
 public:
  virtual ~StageModule() = default;

  // Maps hidden to hidden. The first stage ignores `hidden`. The last stage returns the
  // micro-batch's mean loss, a scalar, or with --same-bits the loss of each sample, [b]. Without
  // labels it returns this rank's logits, [b, s, v/t], which text generation and Engine::predict()
  // ask for.
  virtual torch::Tensor forward(const torch::Tensor& hidden, const MicroBatch& batch) = 0;

  // Returns an uninitialised tensor of the shape and dtype that stages send each other.
  virtual torch::Tensor empty_hidden() const = 0;

  // The runs of consecutive layers that it holds (schedule.h). forward() runs one of them. The
  // model begins with the first stage's first one, and ends with the last stage's last one.
  virtual int chunks() const { return 1; }

  // The parameters, in the order in which DeepSpeed would flatten them.
  virtual const std::vector<ParamSpec>& params() const = 0;

  // Called after each step, on all ranks. A model changes its buffers here (ParamSpec), unless an
  // fp16 overflow `skipped` the step: then it only forgets what it counted. A checkpoint holds
  // parameters and buffers alone, so nothing else may last beyond this call.
  virtual void after_step(bool /*skipped*/) {}

  // Returns lines about the last step, about this stage. The trainer prints those of all stages at
  // each --log-interval.
  virtual std::vector<std::string> step_notes() const { return {}; }

  // The runner through which forward() runs its units.
  UnitRunner& runner() { return runner_; }

 protected:
  UnitRunner runner_;
};

}  // namespace anymesh
