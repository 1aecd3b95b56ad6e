#pragma once

#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "framework/comm/process_grid.h"
#include "framework/pipeline/schedule.h"
#include "framework/pipeline/stage.h"

namespace anymesh {

// Runs a stage's part of the pipeline. Losses are this dp rank's, and every stage gets the same
// value.
class PipelineEngine {
 public:
  // `splits_backward`: by zero_bubble(), else by one_f_one_b() (schedule.h). Collective over
  // grid.pp. Throws UserError if the stage has not as many chunks as the mesh.
  PipelineEngine(StageModule& stage, const ProcessGrid& grid, bool splits_backward = false);

  // Runs forward and backward of all micro-batches of a step; gradients go to the leaves.
  // `gradient_scale` is d objective / d (mean loss of one micro-batch): 1 / (micro-batches of all dp
  // ranks) for the mean over the global batch. Returns the losses of the last stage, on its device,
  // which may still be computing them.
  std::vector<torch::Tensor> forward_backward(const std::vector<MicroBatch>& batches,
                                              double gradient_scale);

  // Waits for the losses and returns their mean, on all stages. Collective over grid.pp.
  double mean_of(const std::vector<torch::Tensor>& losses) const;

  // Runs forward without backward. Returns what the last stage returns for each micro-batch, and
  // nothing on other stages.
  std::vector<torch::Tensor> forward_only(const std::vector<MicroBatch>& batches);

 private:
  const std::vector<Slot>& slots(bool trains, size_t micro_batches);
  std::vector<torch::Tensor> run(const std::vector<Slot>& slots,
                                 const std::vector<MicroBatch>& batches, double gradient_scale);

  StageModule& stage_;
  const ProcessGrid& grid_;
  const bool splits_backward_;
  std::map<std::pair<bool, size_t>, std::vector<Slot>> slots_;  // for training, or for forwards
};

}  // namespace anymesh
