#include "models/gpt/generation/decoder.h"

#include <ATen/Functions.h>
#include <c10/core/InferenceMode.h>

#include "framework/kernels/dispatch.h"

namespace anymesh {

Decoder::Decoder(const GptModel& model) : model_(model), caches_(model.layers().size()) {
  TORCH_INTERNAL_ASSERT(model.grid().topology.world_size() == 1);
}

torch::Tensor Decoder::append(const torch::Tensor& tokens) {
  const c10::InferenceMode no_gradients;
  TORCH_CHECK(length_ + tokens.size(1) <= model_.config().seq_length, "a text of ",
              length_ + tokens.size(1), " tokens: there are tables for ",
              model_.config().seq_length);
  torch::Tensor hidden = model_.embed({.inputs = tokens}, /*positions=*/{}, length_);
  for (size_t i = 0; i < caches_.size(); ++i)
    hidden = model_.layers()[i].forward(hidden, /*context=*/{},
                                        [&](const auto& attention, const torch::Tensor& qkv) {
                                          return attend(attention, caches_[i], qkv);
                                        });
  length_ += tokens.size(1);
  return model_
      .logits(hidden.narrow(1, hidden.size(1) - 1, 1))  // [b, 1, v]
      .squeeze(1)
      .narrow(1, 0, model_.config().vocab_size);
}

torch::Tensor Decoder::attend(const ParallelAttention& attention, Cache& cache,
                              const torch::Tensor& qkv) const {
  const int64_t first = length_, s = qkv.size(1);
  const RelativePositions positions = part(attention.positions(), first, s);
  const auto [q, k, v] = split_heads(qkv, positions.rotation());
  const torch::Tensor keys = extended(cache.keys, k), values = extended(cache.values, v);
  std::optional<torch::Tensor> mask = positions.score_bias;
  if (!mask) mask = if_defined(attention.visible(first, s, q.device()));
  const torch::Tensor mixed = at::scaled_dot_product_attention(
      q, keys, values, mask, /*dropout_p=*/0, /*is_causal=*/false,
      /*scale=*/{}, /*enable_gqa=*/q.size(1) > k.size(1));  // [b, n, s, d]
  return mixed.transpose(1, 2).flatten(2);
}

torch::Tensor Decoder::extended(torch::Tensor& cache, const torch::Tensor& next) const {
  const std::vector<int64_t> shape{next.size(0), next.size(1), model_.config().seq_length,
                                   next.size(3)};
  if (length_ == 0 && (!cache.defined() || cache.sizes() != shape))
    cache = torch::empty(shape, next.options());
  cache.narrow(2, length_, next.size(2)).copy_(next);
  return cache.narrow(2, 0, length_ + next.size(2));
}

RelativePositions Decoder::part(RelativePositions positions, int64_t first, int64_t s) {
  for (torch::Tensor* table : {&positions.cos, &positions.sin})
    if (table->defined()) *table = table->narrow(0, first, s);
  if (auto& bias = positions.score_bias) bias = bias->narrow(2, first, s).narrow(3, 0, first + s);
  return positions;
}

}  // namespace anymesh
