#pragma once

#include <optional>
#include <vector>

#include "framework/comm/process_grid.h"
#include "framework/pipeline/stage.h"

namespace anymesh {

// Runs a stage's part of the pipeline. Losses are this dp rank's, and every stage gets the same
// value.
class PipelineEngine {
 public:
  // Collective over grid.pp.
  PipelineEngine(StageModule& stage, const ProcessGrid& grid) : stage_(stage), grid_(grid) {
    grid.pp->connect_neighbours();
  }

  // Runs forward and backward of all micro-batches by 1F1B; gradients go to the leaves.
  // `gradient_scale` is d objective / d (mean loss of one micro-batch): 1 / (micro-batches of all
  // dp ranks) for the mean over the global batch. Returns the losses of the last stage, on its
  // device, which may still be computing them.
  std::vector<torch::Tensor> forward_backward(const std::vector<MicroBatch>& batches,
                                              double gradient_scale);

  // Waits for the losses and returns their mean, on all stages. Collective over grid.pp.
  double mean_of(const std::vector<torch::Tensor>& losses) const;

  // Runs forward without backward. Returns what the last stage returns for each micro-batch, and
  // nothing on other stages.
  std::vector<torch::Tensor> forward_only(const std::vector<MicroBatch>& batches);

 private:
  void backward(int micro_batch, const torch::Tensor& output, const torch::Tensor& gradient) const;
  // Sends `out`, if any, to the stage that is `neighbour` (1 or -1) further, and receives a tensor
  // from it if `receives`. At an end of the pipeline that stage does not exist; then this does
  // nothing and returns an undefined tensor.
  torch::Tensor exchange(const std::optional<torch::Tensor>& out, int neighbour,
                         bool receives) const;
  void send(const torch::Tensor& out, int neighbour) const { exchange(out, neighbour, false); }
  torch::Tensor receive(int neighbour) const { return exchange(std::nullopt, neighbour, true); }

  StageModule& stage_;
  const ProcessGrid& grid_;
};

}  // namespace anymesh
