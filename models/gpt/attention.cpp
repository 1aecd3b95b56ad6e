#include "models/gpt/attention.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/OpMathType.h>

#include <cmath>

#include "framework/pipeline/unit_runner.h"
#include "framework/tensor_parallel/mappings.h"

namespace anymesh {
namespace {

// LibTorch's attention: q [b, n/t, s, d], k and v [b, k/t, s, d]. On a GPU a mask keeps cuDNN out,
// whose gradient of masked queries is wrong for some lengths. The switch is the process's, which
// ranks on CPU threads share. With a mask, a GPU's kernels that do not store the scores need a key
// for each query's head.
torch::Tensor masked_attention(const torch::Tensor& q, const torch::Tensor& k,
                               const torch::Tensor& v, const std::optional<torch::Tensor>& mask,
                               int64_t group_size) {
  at::Context& context = at::globalContext();
  const bool keeps_out = mask && !q.is_cpu() && context.userEnabledCuDNNSDP();
  if (keeps_out) context.setSDPUseCuDNN(false);
  const bool repeat = mask && group_size > 1;
  const torch::Tensor keys = repeat ? k.repeat_interleave(group_size, 1) : k,
                      values = repeat ? v.repeat_interleave(group_size, 1) : v;
  const torch::Tensor mixed =
      at::scaled_dot_product_attention(q, keys, values, mask, /*dropout_p=*/0, /*is_causal=*/!mask,
                                       /*scale=*/{}, /*enable_gqa=*/group_size > 1 && !repeat);
  if (keeps_out) context.setSDPUseCuDNN(true);
  return mixed;
}

struct QueriesAndKeys {
  torch::Tensor q, k;
};

// Normalizes heads of any number, q and k [b, s, ..., d].
QueriesAndKeys normed_heads(const QueriesAndKeys& heads, const HeadNorms& norms) {
  if (!norms.all_heads) return {norm(heads.q, norms.q), norm(heads.k, norms.k)};
  const auto wide = [](const torch::Tensor& x) {  // [b, s, heads d]
    return x.flatten(2).to(at::toOpMathType(x.scalar_type()));
  };
  const torch::Tensor q = wide(heads.q), k = wide(heads.k),
                      squares = sum_inside_tensor_parallel(
                          at::cat({q.square().sum(-1, true), k.square().sum(-1, true)}, -1),
                          norms.tp);  // [b, s, 2]
  const auto scaled = [&](const torch::Tensor& x, int64_t which, const NormParams& params) {
    const auto width = static_cast<double>(x.size(-1) * norms.tp.size());
    return x * at::rsqrt(squares.narrow(-1, which, 1) / width + params.epsilon) *
           (params.weight.to(x.scalar_type()) + params.offset);
  };
  return {scaled(q, 0, norms.q).to(heads.q.scalar_type()).view_as(heads.q),
          scaled(k, 1, norms.k).to(heads.k.scalar_type()).view_as(heads.k)};
}

}  // namespace

ParallelAttention::ParallelAttention(const StageParams& params, const std::string& name, int layer,
                                     const GptConfig& config, const RelativePositions& positions)
    : groups_(config.key_value_heads() / params.tp().size()),
      group_size_(config.num_attention_heads / config.key_value_heads()),
      first_head_(groups_ * group_size_ * params.tp().rank()),
      head_dim_(config.head_dim()),
      window_(config.window()),
      layer_(static_cast<uint32_t>(layer)),
      dropout_(config.attention_dropout),
      recomputes_(config.recomputes("core_attn")),
      positions_(positions),
      query_key_value_{params.column_parallel(name + ".query_key_value"),
                       params.adapter({{name + ".q_proj", group_size_ * head_dim_},
                                       {name + ".k_proj", head_dim_},
                                       {name + ".v_proj", head_dim_}},
                                      DropoutSite::QueryKeyValueAdapter, groups_)},
      head_norms_{.q = params.norm(name + ".q_layernorm"),
                  .k = params.norm(name + ".k_layernorm"),
                  .all_heads = config.qk_layernorm_all_heads,
                  .tp = params.tp()},
      dense_{params.row_parallel(name + ".dense"),
             params.adapter({{name + ".o_proj", config.hidden_size}}, DropoutSite::DenseAdapter)} {}

torch::Tensor ParallelAttention::forward(const torch::Tensor& hidden, const LayerContext& context,
                                         Mix mix) const {
  const torch::Tensor qkv =
      normed(query_key_value_
                 .forward(hidden, context.dropout)                       // [b, s, (n+2k)d/t]
                 .unflatten(2, {groups_, group_size_ + 2, head_dim_}));  // [b, s, k/t, n/k+2, d]
  const auto core = [this, context](const torch::Tensor& x) { return attend(x, context); };
  const torch::Tensor mixed = mix           ? mix(*this, qkv)
                              : recomputes_ ? recomputed(qkv, core)
                                            : attend(qkv, context);
  return dense_.forward(mixed, context.dropout);
}

torch::Tensor ParallelAttention::normed(const torch::Tensor& qkv) const {
  if (!head_norms_.q.weight.defined()) return qkv;
  const auto parts = qkv.split_with_sizes({group_size_, 1, 1}, 3);
  const auto [q, k] = normed_heads({parts[0], parts[1]}, head_norms_);
  return at::cat({q, k, parts[2]}, 3);
}

torch::Tensor ParallelAttention::attend(const torch::Tensor& qkv,
                                        const LayerContext& context) const {
  if (!can_fuse_attention(qkv)) return attend_unfused(qkv, context);
  return fused_attention(qkv, {.cos = positions_.cos,
                               .sin = positions_.sin,
                               .bias = positions_.score_bias,
                               .window = window_,
                               .dropout = dropout_,
                               .context = context.dropout,
                               .positions = context.positions,
                               .first_keys = context.first_keys,
                               .layer = layer_ + 1,
                               .first_head = first_head_});
}

torch::Tensor ParallelAttention::visible(int64_t first, int64_t s, torch::Device device) const {
  const bool windowed = window_ > 0 && window_ < first + s;
  if (s == 1 && !windowed) return {};
  const torch::Tensor past = at::ones({s, first + s}, torch::dtype(torch::kBool).device(device));
  return (windowed ? past.triu(first - window_ + 1) : past).tril(first);
}

std::optional<torch::Tensor> ParallelAttention::mask_of(const LayerContext& context, int64_t s,
                                                        torch::Device device) const {
  const torch::Tensor& first = context.first_keys;
  const auto& bias = positions_.score_bias;
  if (!first.defined() && (bias || window_ == 0 || window_ >= s)) return bias;
  torch::Tensor seen = visible(0, s, device);  // [s, s]
  if (!first.defined()) return seen;
  const torch::Tensor own = at::arange(s, first.options()) >= first.unsqueeze(2);  // [b, s, s]
  seen = (seen.defined() ? own.logical_and(seen) : own).unsqueeze(1);
  return bias ? bias->masked_fill(~seen, -INFINITY) : seen;
}

torch::Tensor ParallelAttention::attend_unfused(const torch::Tensor& qkv,
                                                const LayerContext& context) const {
  const auto [q, k, v] = split_heads(qkv, positions_.rotation(context.positions));
  const int64_t s = q.size(2);
  const bool drops = dropout_ > 0 && !context.dropout.samples.empty(), grouped = group_size_ > 1;
  const auto join = [](const torch::Tensor& mixed) {  // [b, n/t, s, d] -> [b, s, nd/t]
    return mixed.transpose(1, 2).flatten(2);
  };
  std::optional<torch::Tensor> mask = mask_of(context, s, q.device());
  if (!drops) {
    // Kernels for GPUs take a bias in the dtype of q alone, and cuDNN's reads another as that.
    if (positions_.score_bias) mask = mask->to(q.scalar_type());
    return join(masked_attention(q, k, v, mask, group_size_));
  }

  // Uses the explicit form, because the fused kernel would draw its own mask.
  const auto per_query = [&](const torch::Tensor& x) {  // [b, k/t, s, d] -> [b, n/t, s, d]
    return grouped ? x.repeat_interleave(group_size_, 1) : x;
  };
  // Scales the queries, because unscaled scores may exceed fp16.
  torch::Tensor scores = at::matmul(q / std::sqrt(static_cast<double>(head_dim_)),
                                    per_query(k).transpose(-1, -2));  // [b, n/t, s, s]
  const torch::Tensor seen = mask ? *mask : visible(0, s, q.device());
  if (positions_.score_bias)
    scores = scores + seen;  // in the bias's precision
  else if (seen.defined())
    scores = scores.masked_fill(~seen, -INFINITY);
  const torch::Tensor weights = at::softmax(scores, -1).to(v.scalar_type());
  return join(at::matmul(dropout(weights, dropout_, context.dropout,
                                 {layer_ + 1, DropoutSite::Attention}, first_head_ * s * s),
                         per_query(v)));
}

}  // namespace anymesh
