#include "models/gpt/documents.h"

#include <ATen/Functions.h>

#include <vector>

namespace anymesh {
namespace {

// Returns for each token where its document begins in the sample. The token that ends a document
// belongs to it.
torch::Tensor document_starts(const torch::Tensor& tokens, int64_t eod) {  // [b, s] -> [b, s]
  const int64_t s = tokens.size(1);
  const torch::Tensor next = at::arange(1, s + 1, tokens.options());
  const torch::Tensor ends = (tokens == eod) * next;  // 0 inside a document
  const torch::Tensor begins = at::constant_pad_nd(ends.narrow(1, 0, s - 1), {1, 0});
  return std::get<0>(at::cummax(begins, 1));
}

}  // namespace

LayerContext layer_context(const MicroBatch& batch, const GptConfig& config) {
  LayerContext context{.dropout = batch.dropout, .loss_scale = batch.loss_scale};
  if (!config.separates_documents()) return context;
  const torch::Tensor starts = document_starts(batch.inputs, config.eod_token);
  if (config.reset_position_ids)
    context.positions = at::arange(batch.inputs.size(1), starts.options()) - starts;
  if (config.reset_attention_mask) context.first_keys = starts;
  return context;
}

torch::Tensor mean_loss(const torch::Tensor& losses, const torch::Tensor& inputs,
                        const GptConfig& config) {
  if (!config.eod_mask_loss) return losses.mean();
  const torch::Tensor counted = inputs != config.eod_token;
  return (losses * counted).sum() / counted.sum().clamp_min(1);
}

torch::Tensor mean_losses(const torch::Tensor& losses, const torch::Tensor& inputs,
                          const GptConfig& config) {
  std::vector<torch::Tensor> means;
  for (int64_t i = 0; i < losses.size(0); ++i)
    means.push_back(mean_loss(losses[i], inputs.defined() ? inputs[i] : inputs, config));
  return at::stack(means);
}

}  // namespace anymesh
