#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "framework/comm/process_grid.h"
#include "framework/pipeline/stage.h"
#include "models/gpt/transformer_layer.h"

namespace anymesh {

// One stage of a GPT: [embedding] layers [norm, logits, loss]. The brackets are on the first and
// the last stage. With several chunks, the embedding is in the first one's first, and the head in
// the last one's last.
//
// Its parameters are in gpt_parameters.h. With tied weights the last stage has its own copy of the
// word embeddings. Its gradient is added to the first stage's once per step.
class GptModel final : public StageModule {
 public:
  GptModel(const GptConfig& config, const ProcessGrid& grid, torch::Dtype dtype,
           int64_t micro_batch_size, uint64_t seed, bool sequence_parallel = false);

  // Returns this rank's logits, [b, s, v/t], on the last stage if the batch has no labels.
  torch::Tensor forward(const torch::Tensor& hidden, const MicroBatch& batch) override;
  torch::Tensor empty_hidden() const override;
  int chunks() const override { return static_cast<int>(stage_.chunks.size()); }
  const std::vector<ParamSpec>& params() const override { return params_; }
  void after_step(bool skipped) override;
  std::vector<std::string> step_notes() const override;

  // The parts of forward(), for generation. embed() takes tokens at `positions`, int64 [b, s], or
  // at positions `first` and on.
  torch::Tensor embed(const MicroBatch& batch, const torch::Tensor& positions,
                      int64_t first = 0) const;  // -> [b, s, h]
  const std::vector<TransformerLayer>& layers() const { return layers_; }
  torch::Tensor logits(const torch::Tensor& hidden) const;  // [b, s, h] -> [b, s, v/t]
  const GptConfig& config() const { return config_; }
  const ProcessGrid& grid() const { return grid_; }

 private:
  torch::Tensor position_rows(const torch::Tensor& positions, int64_t first,
                              const torch::Tensor& hidden) const;

  GptConfig config_;
  const ProcessGrid& grid_;
  TensorParallel tp_;
  torch::TensorOptions options_;  // of parameters and hidden states
  int64_t micro_batch_size_;
  GptStage stage_;
  std::optional<VocabParallelEmbedding> word_embeddings_;
  NormParams word_embeddings_norm_;    // undefined unless --embed-layernorm
  torch::Tensor position_embeddings_;  // [offset + max positions, h]; undefined unless learned
  std::vector<TransformerLayer> layers_;
  NormParams final_layernorm_;
  std::vector<std::pair<int, torch::Tensor>> tokens_of_experts_;  // by layer: of the last step, [E]
  torch::Tensor output_table_;                                    // [v/t, h], tied or not
  std::vector<ParamSpec> params_;
};

}  // namespace anymesh
