#include "tutorials/16_new_model/mlp_model.h"

#include <ATen/Functions.h>

#include "framework/config/require.h"
#include "framework/kernels/activation.h"
#include "framework/pipeline/schedule.h"
#include "framework/tensor_parallel/cross_entropy.h"

namespace anymesh {
namespace {

const Init kInit = Init::normal(0.05);

}  // namespace

void validate(const MlpConfig& mlp, const ParallelConfig& parallel) {
  const std::string layers = with("--num-layers", mlp.num_layers),
                    length = with("--seq-length", mlp.seq_length),
                    tp = with("--tensor-model-parallel-size", parallel.tp);
  require(mlp.num_layers >= 1, layers + " is required and must be at least 1");
  require(mlp.hidden_size >= 1,
          with("--hidden-size", mlp.hidden_size) + " is required and must be at least 1");
  require(mlp.seq_length >= 1, length + " is required and must be at least 1");
  require(
      mlp.context_length >= 1 && mlp.context_length <= mlp.seq_length,
      with("--context-length", mlp.context_length) + " must be at least 1 and at most " + length);
  require(mlp.num_layers >= parallel.pp,
          layers + " must be at least " + with("--pipeline-model-parallel-size", parallel.pp));
  require(mlp.inner_size() % parallel.tp == 0,
          "4 x " + with("--hidden-size", mlp.hidden_size) + " must be divisible by " + tp);
  require(!parallel.sequence_parallel || mlp.seq_length % parallel.tp == 0,
          "--sequence-parallel: " + length + " must be divisible by " + tp);
}

MlpNorm::MlpNorm(ParamBuilder& params, const std::string& name, int64_t size)
    : weight_(params.add({.name = name + ".weight",
                          .shape = {size},
                          .weight_decay = false,
                          .tp_sum = params.tp().sequence},
                         Init::constant(1))) {}

torch::Tensor MlpNorm::forward(const torch::Tensor& hidden) const {
  return at::rms_norm(hidden, {hidden.size(-1)}, weight_, 1e-5);
}

MlpLayer::MlpLayer(ParamBuilder& params, const std::string& name, const MlpConfig& config)
    : norm_(params, name + ".norm", config.hidden_size),
      up_(params, name + ".up", config.hidden_size, config.inner_size(), kInit, /*bias=*/false),
      down_(params, name + ".down", config.inner_size(), config.hidden_size, kInit,
            /*bias=*/false) {}

torch::Tensor MlpLayer::forward(const torch::Tensor& hidden) const {
  const torch::Tensor inner = gelu_tanh(up_.forward(norm_.forward(hidden)));  // [b, s, 4h/t]
  return hidden + down_.forward(inner);
}

MlpModel::MlpModel(const MlpConfig& config, const ProcessGrid& grid, torch::Dtype dtype,
                   int64_t micro_batch_size, uint64_t seed, bool sequence_parallel)
    : config_(config),
      grid_(grid),
      tp_{grid.tp, sequence_parallel},
      options_(torch::dtype(dtype).device(grid.device)),
      micro_batch_size_(micro_batch_size) {
  ParamBuilder params(tp_, options_, seed);
  params.layer = 1;
  for (int back = 0; grid.is_first_stage() && back < config.context_length; ++back) {
    tables_.emplace_back(params,
                         ParamSpec{.name = "1.tables." + std::to_string(back) + ".weight",
                                   .shape = {config.vocab_size, config.hidden_size},
                                   .split_dim = 0,
                                   .vocabulary = true},
                         kInit);
  }
  if (grid.is_first_stage()) ++params.unit;
  const LayerRange range = layers_of_stage(config.num_layers, grid.topology.pp_size, grid.coord.pp);
  for (int layer = range.begin; layer < range.end; ++layer, ++params.unit) {
    params.layer = layer + 2;
    layers_.emplace_back(params, std::to_string(params.layer), config);
  }
  if (grid.is_last_stage()) make_head(params);
  params_ = params.take();
}

void MlpModel::make_head(ParamBuilder& params) {
  params.layer = config_.num_layers + 2;
  const std::string name = std::to_string(params.layer);
  final_norm_.emplace_back(params, name + ".norm", config_.hidden_size);
  head_ = params.add({.name = name + ".head.weight",
                      .shape = {config_.vocab_size, config_.hidden_size},
                      .split_dim = 0,
                      .vocabulary = true},
                     kInit);
}

torch::Tensor MlpModel::forward(const torch::Tensor& input, const MicroBatch& batch) {
  torch::Tensor hidden = input;
  int unit = 0;  // as the constructor counts them
  if (grid_.is_first_stage()) {
    hidden = runner_.run(unit++, {}, [&](const torch::Tensor&) { return embed(batch.inputs); });
  }
  for (const MlpLayer& layer : layers_) {
    hidden =
        runner_.run(unit++, hidden, [&layer](const torch::Tensor& h) { return layer.forward(h); });
  }
  if (!grid_.is_last_stage()) return hidden;
  return runner_.run(unit, hidden, [this, labels = batch.labels](const torch::Tensor& h) {
    if (!labels.defined()) return logits(h);
    return vocab_parallel_cross_entropy(logits(h), labels, config_.vocab_size, tp_).mean();
  });
}

torch::Tensor MlpModel::empty_hidden() const {
  return torch::empty(
      {micro_batch_size_, config_.seq_length / tp_.sequence_parts(), config_.hidden_size},
      options_);
}

// Positions before the first token have the token -1, with a zero embedding.
torch::Tensor MlpModel::embed(const torch::Tensor& tokens) const {
  torch::Tensor hidden = tables_[0].forward(tokens);
  const int64_t context = std::min<int64_t>(config_.context_length, tokens.size(1));
  for (int64_t back = 1; back < context; ++back) {
    const torch::Tensor earlier =
        at::constant_pad_nd(tokens.narrow(1, 0, tokens.size(1) - back), {back, 0}, -1);  // [b, s]
    hidden = hidden + tables_[static_cast<size_t>(back)].forward(earlier);
  }
  return hidden;
}

torch::Tensor MlpModel::logits(const torch::Tensor& hidden) const {
  return vocab_parallel_logits(final_norm_[0].forward(hidden), head_, tp_);
}

}  // namespace anymesh
