#include "models/gpt/gpt_model.h"

#include <ATen/Functions.h>
#include <c10/util/StringUtil.h>

#include <cmath>
#include <utility>

#include "framework/tensor_parallel/cross_entropy.h"

namespace anymesh {

GptModel::GptModel(const GptConfig& config, const ProcessGrid& grid, torch::Dtype dtype,
                   int64_t micro_batch_size, uint64_t seed, bool sequence_parallel)
    : config_(config),
      grid_(grid),
      tp_{grid.tp, sequence_parallel, grid.same_bits.blocks},
      options_(torch::dtype(dtype).device(grid.device)),
      micro_batch_size_(micro_batch_size),
      stage_(config, grid.topology, grid.coord.pp) {
  StageParams params(config, grid, tp_, options_, seed);
  if (stage_.first) {
    const std::string embed =
        config.untie_embeddings_and_output_weights ? "1." : "tied_modules.embed.";
    word_embeddings_.emplace(tp_, params[embed + "word_embeddings.weight"]);
    word_embeddings_norm_ = params.norm(embed + "word_embeddings.norm");
    position_embeddings_ = params[embed + "position_embeddings.weight"];
  }
  const RelativePositions positions(config, *grid.tp, options_);
  layers_.reserve(stage_.layers.size());
  for (const int layer : stage_.layers) layers_.emplace_back(params, layer, config, positions);
  final_layernorm_ = params.norm(std::to_string(config.num_layers + 2));
  output_table_ = params.output_table();
  params_ = params.take();
}

torch::Tensor GptModel::forward(const torch::Tensor& input, const MicroBatch& batch) {
  torch::Tensor hidden = input;
  const LayerContext context = layer_context(batch, config_);
  const LayerRange chunk = stage_.chunks[static_cast<size_t>(batch.chunk)];
  if (stage_.first && batch.chunk == 0) {
    hidden =
        runner_.run(0, {}, [&](const torch::Tensor&) { return embed(batch, context.positions); });
  }
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (stage_.layers[i] < chunk.begin || stage_.layers[i] >= chunk.end) continue;
    const TransformerLayer& layer = layers_[i];
    hidden = runner_.run(
        stage_.first + static_cast<int>(i), hidden,
        [&layer, context](const torch::Tensor& h) { return layer.forward(h, context); });
  }
  if (!stage_.last || batch.chunk + 1 < chunks()) return hidden;
  return runner_.run(stage_.head().unit, hidden, [this, batch](const torch::Tensor& h) {
    if (!batch.labels.defined()) return logits(h);
    const torch::Tensor losses =
        vocab_parallel_cross_entropy(logits(h), batch.labels, config_.vocab_size, tp_);  // [b, s]
    return grid_.same_bits.blocks > 0 ? mean_losses(losses, batch.inputs, config_)
                                      : mean_loss(losses, batch.inputs, config_);
  });
}

// Updates the routers' biases by the tokens of all ranks.
void GptModel::after_step(bool skipped) {
  c10::NoGradGuard no_grad;
  std::vector<std::pair<int, const Router*>> routers;
  std::vector<torch::Tensor> counts;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Router* const router = layers_[i].router();
    if (!router || !router->counts().defined()) continue;
    routers.emplace_back(stage_.layers[i], router);
    counts.push_back(router->counts());
  }
  if (routers.empty()) return;
  const torch::Tensor all = at::stack(counts);  // [layers, E]
  grid_.dp->all_reduce(all);
  if (grid_.topology.whole_experts) grid_.tp->all_reduce(all);
  tokens_of_experts_.clear();
  for (size_t i = 0; i < routers.size(); ++i) {
    tokens_of_experts_.emplace_back(routers[i].first, all[static_cast<int64_t>(i)]);
    routers[i].second->end_step(tokens_of_experts_.back().second, skipped);
  }
}

std::vector<std::string> GptModel::step_notes() const {
  std::vector<std::string> notes;
  if (!config_.moe_per_layer_logging) return notes;
  for (const auto& [layer, tokens] : tokens_of_experts_) {
    const torch::Tensor here = tokens.to(torch::kCPU, torch::kLong);
    notes.push_back(c10::str("layer ", layer, ", tokens of each expert: ",
                             c10::Join(" ", c10::IntArrayRef(here.const_data_ptr<int64_t>(),
                                                             static_cast<size_t>(here.numel())))));
  }
  return notes;
}

torch::Tensor GptModel::empty_hidden() const {
  return torch::empty(
      {micro_batch_size_, config_.seq_length / tp_.sequence_parts(), config_.hidden_size},
      options_);
}

torch::Tensor GptModel::embed(const MicroBatch& batch, const torch::Tensor& positions,
                              int64_t first) const {
  torch::Tensor hidden = word_embeddings_->forward(batch.inputs);  // [b, s, h]
  if (config_.apply_embedding_scaling)
    hidden = hidden * std::sqrt(static_cast<double>(config_.hidden_size));
  if (word_embeddings_norm_.weight.defined()) hidden = norm(hidden, word_embeddings_norm_);
  if (position_embeddings_.defined()) hidden = hidden + position_rows(positions, first, hidden);
  return dropout(hidden, config_.hidden_dropout, batch.dropout, {0, DropoutSite::Embedding},
                 tp_.first_element(hidden));
}

torch::Tensor GptModel::position_rows(const torch::Tensor& positions, int64_t first,
                                      const torch::Tensor& hidden) const {
  const int64_t offset = config_.position_embedding_offset, count = hidden.size(1),
                part = tp_.sequence_part() * count;  // where this rank's part begins
  if (!positions.defined() && tp_.blocks == 0)
    return position_embeddings_.narrow(0, offset + first + part, count);
  const torch::Tensor rows =
      positions.defined()
          ? positions.narrow(1, part, count)
          : at::arange(first + part, first + part + count).expand({hidden.size(0), count});
  // Gradients of rows are sparse, so that those that occur often are summed in fp32, and with
  // --same-bits each by itself.
  return at::embedding(position_embeddings_, rows + offset, /*padding_idx=*/-1,
                       /*scale_grad_by_freq=*/false, /*sparse=*/true);
}

torch::Tensor GptModel::logits(const torch::Tensor& hidden) const {
  return vocab_parallel_logits(norm(hidden, final_layernorm_), output_table_, tp_);
}

}  // namespace anymesh
