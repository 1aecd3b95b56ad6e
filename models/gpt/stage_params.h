#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "framework/comm/process_grid.h"
#include "framework/kernels/norm.h"
#include "framework/tensor_parallel/layers.h"
#include "framework/tensor_parallel/lora.h"
#include "models/gpt/gpt_parameters.h"

namespace anymesh {

// The parameters of gpt_parameters() that a stage holds. Layers take theirs by name:
//
//   StageParams params(config, grid, tp, options, seed);
//   ColumnParallelLinear up = params.column_parallel("2.mlp.dense_h_to_4h");  // .weight and .bias
//   torch::Tensor gate = params["2.mlp.shared_experts_gate.weight"];          // undefined: no such
class StageParams {
 public:
  StageParams(const GptConfig& config, const ProcessGrid& grid, const TensorParallel& tp,
              const torch::TensorOptions& options, uint64_t seed);

  torch::Tensor operator[](const std::string& name) const;
  ColumnParallelLinear column_parallel(const std::string& name) const;
  RowParallelLinear row_parallel(const std::string& name) const;
  // The adapter of one matrix of a layer, whose rows on this rank are those of `parts` in each of
  // `groups`: {"2.self_attention.q_proj", 64}. Not defined if no part has one. `site` is its
  // dropout's.
  LoraAdapter adapter(const std::vector<std::pair<std::string, int64_t>>& parts, DropoutSite site,
                      int64_t groups = 1) const;
  // A LayerNorm, or one without mean and bias with --normalization rmsnorm.
  NormParams norm(const std::string& name) const;

  const TensorParallel& tp() const { return builder_.tp(); }
  const ExpertParallel& ep() const { return builder_.ep; }

  // The table of the logits: the tied one, of which a stage that is both ends has a second leaf, or
  // the head's own. Undefined before the last stage.
  const torch::Tensor& output_table() const { return output_table_; }

  // Returns the specs, under the names that --no-pipeline-parallel asks for.
  std::vector<ParamSpec> take();

 private:
  const GptConfig& config_;
  ParamBuilder builder_;
  std::map<std::string, torch::Tensor> leaves_;
  std::map<std::string, int64_t> parts_;  // sub_params
  torch::Tensor output_table_;
};

}  // namespace anymesh
