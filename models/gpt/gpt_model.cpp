#include "models/gpt/gpt_model.h"

#include <ATen/Functions.h>
#include <c10/util/StringUtil.h>

#include <cmath>
#include <utility>

#include "framework/pipeline/schedule.h"
#include "framework/tensor_parallel/cross_entropy.h"
#include "models/gpt/gpt_names.h"
#include "models/gpt/norms.h"

namespace anymesh {
namespace {

std::string embed_prefix(const GptConfig& config) {
  return config.untie_embeddings_and_output_weights ? "1." : "tied_modules.embed.";
}

ParamSpec word_table(const GptConfig& config) {
  return {.name = embed_prefix(config) + "word_embeddings.weight",
          .shape = {config.vocab_size, config.hidden_size},
          .split_dim = 0,
          .vocabulary = true,
          .tied = !config.untie_embeddings_and_output_weights};
}

}  // namespace

GptModel::GptModel(const GptConfig& config, const ProcessGrid& grid, torch::Dtype dtype,
                   int64_t micro_batch_size, uint64_t seed, bool sequence_parallel)
    : config_(config),
      grid_(grid),
      tp_{grid.tp, sequence_parallel},
      options_(torch::dtype(dtype).device(grid.device)),
      micro_batch_size_(micro_batch_size) {
  ParamBuilder params(tp_, options_, seed);
  params.vocabulary_multiple = config.make_vocab_size_divisible_by;
  params.layer = 1;
  params.ep = {grid.ep, grid.topology.whole_experts};

  const bool tied = !config.untie_embeddings_and_output_weights, first = grid.is_first_stage(),
             last = grid.is_last_stage();
  const Init init = Init::normal(config.init_method_std);
  ParamSpec table = word_table(config);
  const LayerRange range = layers_of_stage(config.num_layers, grid.topology.pp_size, grid.coord.pp);
  first_layer_unit_ = first ? 1 : 0;
  const int head_unit = first_layer_unit_ + range.end - range.begin;
  if (first) make_embedding(params, table, init);
  if (tied && last) {
    table.duplicate = true;
    params.unit = head_unit;
    output_table_ = first ? params.use_again(table.name) : params.add(table, init);
  }

  const RelativePositions positions(config, *grid.tp, options_);
  layers_.reserve(static_cast<size_t>(range.end - range.begin));
  for (int layer = range.begin; layer < range.end; ++layer) {
    params.layer = layer + 2;
    params.unit = first_layer_unit_ + layer - range.begin;
    layers_.emplace_back(params, layer, config, positions);
  }

  if (last) {
    params.layer = config.num_layers + 2;
    params.unit = head_unit;
    final_layernorm_ = make_norm(params, std::to_string(config.num_layers + 2), config);
    if (!tied) {
      params.layer = config.num_layers + 3;
      table.name = std::to_string(config.num_layers + 3) + ".lm_head.weight";
      output_table_ = params.add(table, init);
    }
  }
  params_ = params.take();
  for (ParamSpec& spec : params_) {
    spec.other_name = no_pipeline_name(spec.name, config.num_layers);
    if (config.no_pipeline_parallel) std::swap(spec.name, spec.other_name);
  }
}

void GptModel::make_embedding(ParamBuilder& params, const ParamSpec& table, Init init) {
  const std::string prefix = embed_prefix(config_);
  word_embeddings_.emplace(params, table, init);
  if (config_.embed_layernorm) {
    word_embeddings_norm_ = make_norm(params, prefix + "word_embeddings.norm", config_);
  }
  if (config_.learned_positions()) {
    position_embeddings_ =
        params.add({.name = prefix + "position_embeddings.weight",
                    .shape = {config_.max_position_embeddings + config_.position_embedding_offset,
                              config_.hidden_size},
                    .tp_sum = tp_.sequence},
                   init);
  }
}

torch::Tensor GptModel::forward(const torch::Tensor& input, const MicroBatch& batch) {
  torch::Tensor hidden = input;
  const LayerContext context = layer_context(batch, config_);
  if (grid_.is_first_stage()) {
    hidden =
        runner_.run(0, {}, [&](const torch::Tensor&) { return embed(batch, context.positions); });
  }
  int unit = first_layer_unit_;
  for (const TransformerLayer& layer : layers_) {
    hidden = runner_.run(unit++, hidden, [&layer, context](const torch::Tensor& h) {
      return layer.forward(h, context);
    });
  }
  if (!grid_.is_last_stage()) return hidden;
  return runner_.run(unit, hidden, [this, batch](const torch::Tensor& h) {
    if (!batch.labels.defined()) return logits(h);
    return mean_loss(
        vocab_parallel_cross_entropy(logits(h), batch.labels, config_.vocab_size, grid_.tp), batch,
        config_);
  });
}

// Updates the routers' biases by the tokens of all ranks.
void GptModel::after_step(bool skipped) {
  c10::NoGradGuard no_grad;
  std::vector<std::pair<int, const Router*>> routers;
  std::vector<torch::Tensor> counts;
  int layer = layers_of_stage(config_.num_layers, grid_.topology.pp_size, grid_.coord.pp).begin;
  for (const TransformerLayer& each : layers_) {
    if (each.router() && each.router()->counts().defined()) {
      routers.emplace_back(layer, each.router());
      counts.push_back(each.router()->counts());
    }
    ++layer;
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
  torch::Tensor hidden = word_embeddings_->forward(batch.tokens);  // [b, s, h]
  if (config_.apply_embedding_scaling)
    hidden = hidden * std::sqrt(static_cast<double>(config_.hidden_size));
  if (word_embeddings_norm_.weight.defined()) hidden = norm(hidden, word_embeddings_norm_);
  if (position_embeddings_.defined())
    hidden = hidden + position_rows(positions, first, hidden.size(1));
  return dropout(hidden, config_.hidden_dropout, batch.dropout, {0, DropoutSite::Embedding},
                 tp_.first_element(hidden));
}

torch::Tensor GptModel::position_rows(const torch::Tensor& positions, int64_t first,
                                      int64_t count) const {
  const int64_t offset = config_.position_embedding_offset,
                part = tp_.sequence_part() * count;  // where this rank's part begins
  if (!positions.defined()) return position_embeddings_.narrow(0, offset + first + part, count);
  // Gradients of rows are sparse, so that those that occur often are summed in fp32.
  return at::embedding(position_embeddings_, positions.narrow(1, part, count) + offset,
                       /*padding_idx=*/-1, /*scale_grad_by_freq=*/false, /*sparse=*/true);
}

torch::Tensor GptModel::logits(const torch::Tensor& hidden) const {
  return vocab_parallel_logits(norm(hidden, final_layernorm_), output_table_, tp_);
}

}  // namespace anymesh
