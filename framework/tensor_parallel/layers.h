#pragma once

#include <string>
#include <utility>

#include "framework/param_spec.h"

namespace anymesh {

class LoraAdapter;
struct DropoutContext;

// The three layers that tensor parallelism cuts (Megatron-LM, arXiv:1909.08053, section 3).
// Linear layers compute Y = X A^T + bias with A [out, in]:
//
//   ColumnParallelLinear    A is cut along out; each rank makes its columns of Y
//                           X [b, s, in] -> [b, s, out/t]
//   RowParallelLinear       A is cut along in; each rank makes a partial sum of Y, all-reduced
//                           X [b, s, in/t] -> [b, s, out]
//   VocabParallelEmbedding  the table's rows are cut; each rank looks up the tokens that it owns
//                           tokens [b, s] -> [b, s, h]; zeros for a token that no rank owns
//
// With sequence parallelism, the whole tensors here, [b, s, in], [b, s, out] and [b, s, h], are a
// rank's part of the sequence (mappings.h).
//
// `name` is the parameters' prefix in checkpoints; `.weight` and, if there is one, `.bias` are
// appended.
class ColumnParallelLinear {
 public:
  // With `sub_params` > 1, the rows are that many matrices on top of each other, each cut
  // separately.
  ColumnParallelLinear(ParamBuilder& params, const std::string& name, int64_t in, int64_t out,
                       Init init, bool bias = true, int sub_params = 1);
  // Takes parameters that are made already. The bias may be undefined.
  ColumnParallelLinear(TensorParallel tp, torch::Tensor weight, torch::Tensor bias,
                       int64_t sub_params = 1)
      : tp_(std::move(tp)),
        weight_(std::move(weight)),
        bias_(std::move(bias)),
        parts_(sub_params) {}
  torch::Tensor forward(const torch::Tensor& x) const;
  // The same with an adapter beside A, if it is defined (lora.h).
  torch::Tensor forward(const torch::Tensor& x, const LoraAdapter& adapter,
                        const DropoutContext& context) const;

 private:
  TensorParallel tp_;
  torch::Tensor weight_, bias_;  // [out/t, in], [out/t]
  int64_t parts_ = 1;            // sub_params
};

class RowParallelLinear {
 public:
  RowParallelLinear(ParamBuilder& params, const std::string& name, int64_t in, int64_t out,
                    Init init, bool bias = true);
  RowParallelLinear(TensorParallel tp, torch::Tensor weight, torch::Tensor bias)
      : tp_(std::move(tp)), weight_(std::move(weight)), bias_(std::move(bias)) {}
  torch::Tensor forward(const torch::Tensor& x) const;
  torch::Tensor forward(const torch::Tensor& x, const LoraAdapter& adapter,
                        const DropoutContext& context) const;

 private:
  TensorParallel tp_;
  torch::Tensor weight_, bias_;  // [out, in/t], [out]; the bias is added once, after the sum
};

// One table for the input and, if the weights are tied, for the logits. The gradients of the two
// uses are accumulated apart and added once per step, because two stages that each hold a copy have
// to do so. Hence pp does not change a bit.
class VocabParallelEmbedding {
 public:
  VocabParallelEmbedding(ParamBuilder& params, const ParamSpec& spec, Init init);
  VocabParallelEmbedding(TensorParallel tp, torch::Tensor weight)
      : tp_(std::move(tp)), weight_(std::move(weight)) {}
  torch::Tensor forward(const torch::Tensor& tokens) const;  // [b, s] -> [b, s, h]

 private:
  TensorParallel tp_;
  torch::Tensor weight_;  // [v/t, h]
};

// Returns the logits of this rank's part of the padded vocabulary: hidden [b, s, h], table [v/t, h]
// -> [b, s, v/t].
torch::Tensor vocab_parallel_logits(const torch::Tensor& hidden, const torch::Tensor& table,
                                    const TensorParallel& tp);

}  // namespace anymesh
