#pragma once

#include <vector>

#include "framework/comm/process_grid.h"
#include "framework/config/config.h"
#include "framework/pipeline/stage.h"
#include "framework/tensor_parallel/layers.h"

namespace anymesh {

// Predicts the next token from the last few, by residual MLPs over a sum of embeddings (after
// Bengio et al., "A Neural Probabilistic Language Model", 2003). It has no attention: a token is
// computed by itself.
//
//   embedding  hidden = sum over i of table_i[the token i places back]   1.tables.<i>.weight
//   layer l    hidden = hidden + down(gelu(up(norm(hidden))))           <l+2>.{norm,up,down}.weight
//   head       logits = head(norm(hidden))                               <L+2>.{norm,head}.weight
//
// Shapes: b micro-batch, s sequence, h hidden, v vocabulary, t tp size. With --sequence-parallel
// the hidden state [b, s, h] is a rank's part [b, s/t, h] of the sequence; the framework's layers
// see to it.
struct MlpConfig {
  int num_layers = 0, hidden_size = 0, seq_length = 0;  // required
  int context_length = 3;                               // tokens that the next one depends on
  int vocab_size = 0;                                   // of the tokenizer

  int64_t inner_size() const { return int64_t{4} * hidden_size; }
};

// Throws UserError unless such a model can exist and be cut so.
void validate(const MlpConfig& mlp, const ParallelConfig& parallel);

// hidden / its root mean square * weight.
class MlpNorm {
 public:
  MlpNorm(ParamBuilder& params, const std::string& name, int64_t size);
  torch::Tensor forward(const torch::Tensor& hidden) const;

 private:
  torch::Tensor weight_;  // [h], whole on every tp rank
};

class MlpLayer {
 public:
  MlpLayer(ParamBuilder& params, const std::string& name, const MlpConfig& config);
  torch::Tensor forward(const torch::Tensor& hidden) const;  // [b, s, h] -> [b, s, h]

 private:
  MlpNorm norm_;
  ColumnParallelLinear up_;
  RowParallelLinear down_;
};

// One stage of the model: [embedding] layers [head, loss]. The brackets are on the first and last
// stage.
class MlpModel final : public StageModule {
 public:
  MlpModel(const MlpConfig& config, const ProcessGrid& grid, torch::Dtype dtype,
           int64_t micro_batch_size, uint64_t seed, bool sequence_parallel);

  torch::Tensor forward(const torch::Tensor& hidden, const MicroBatch& batch) override;
  torch::Tensor empty_hidden() const override;
  const std::vector<ParamSpec>& params() const override { return params_; }

 private:
  void make_head(ParamBuilder& params);
  torch::Tensor embed(const torch::Tensor& tokens) const;   // -> [b, s, h]
  torch::Tensor logits(const torch::Tensor& hidden) const;  // -> [b, s, v/t]

  MlpConfig config_;
  const ProcessGrid& grid_;
  TensorParallel tp_;
  torch::TensorOptions options_;  // of parameters and hidden states
  int64_t micro_batch_size_;
  std::vector<VocabParallelEmbedding> tables_;
  std::vector<MlpLayer> layers_;
  std::vector<MlpNorm> final_norm_;  // one, on the last stage
  torch::Tensor head_;               // [v/t, h]
  std::vector<ParamSpec> params_;
};

}  // namespace anymesh
