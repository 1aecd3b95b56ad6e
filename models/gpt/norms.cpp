#include "models/gpt/norms.h"

#include <ATen/Functions.h>
#include <ATen/OpMathType.h>

#include "framework/tensor_parallel/mappings.h"

namespace anymesh {
namespace {

NormParams make_norm_of(ParamSpec spec, ParamBuilder& params, const std::string& name,
                        const GptConfig& config) {
  spec.weight_decay = false;
  NormParams norm{.epsilon = config.layernorm_epsilon,
                  .offset = config.apply_layernorm_1p ? 1.0 : 0.0};
  spec.name = name + ".weight";
  norm.weight = params.add(spec, Init::constant(1 - norm.offset));
  if (config.rms_norm()) return norm;
  spec.name = name + ".bias";
  norm.bias = params.add(spec, Init::constant(0));
  return norm;
}

}  // namespace

NormParams make_norm(ParamBuilder& params, const std::string& name, const GptConfig& config) {
  return make_norm_of({.shape = {config.hidden_size}, .tp_sum = params.tp().sequence}, params, name,
                      config);
}

HeadNorms make_head_norms(ParamBuilder& params, const std::string& name, const GptConfig& config) {
  if (!config.qk_layernorm) return {};
  const auto make = [&](const char* which, int64_t heads) {
    const int64_t d = config.head_dim();
    return make_norm_of(config.qk_layernorm_all_heads
                            ? ParamSpec{.shape = {heads * d}, .split_dim = 0}
                            : ParamSpec{.shape = {d}, .tp_sum = true},
                        params, name + which, config);
  };
  return {.q = make(".q_layernorm", config.num_attention_heads),
          .k = make(".k_layernorm", config.key_value_heads()),
          .all_heads = config.qk_layernorm_all_heads,
          .tp = params.tp()};
}

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

}  // namespace anymesh
