#pragma once

#include <ATen/Functions.h>
#include <torch/types.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "models/gpt/gpt_config.h"

namespace anymesh {

// The reference: the same GPT in plain torch, float64, one process, one attention head after the
// other. It shares nothing of ours but the config and the parameter names.
class DenseGpt {
 public:
  explicit DenseGpt(const GptConfig& c) : config_(c), h_(c.hidden_size), f_(c.ffn_size()) {
    const int64_t rows = (c.num_attention_heads + 2 * c.key_value_heads()) * d_;
    add(embed_ + "word_embeddings.weight", {c.vocab_size, h_});
    if (c.embed_layernorm) add_norm(embed_ + "word_embeddings.norm", h_);
    if (c.learned_positions())
      add(embed_ + "position_embeddings.weight",
          {c.max_position_embeddings + c.position_embedding_offset, h_});
    for (int i = 0; i < c.num_layers; ++i) {
      const std::string p = std::to_string(i + 2) + ".";
      add_norm(p + "input_layernorm", h_);
      const bool all = c.add_bias_linear, attention = all || c.add_attention_linear_bias;
      add_linear(p + "self_attention.query_key_value", rows, h_, attention || c.add_qkv_bias);
      const int64_t queries = c.num_attention_heads * d_, keys = c.key_value_heads() * d_;
      add_adapter(p + "self_attention.", "q_proj", queries, h_);
      add_adapter(p + "self_attention.", "k_proj", keys, h_);
      add_adapter(p + "self_attention.", "v_proj", keys, h_);
      add_adapter(p + "self_attention.", "o_proj", h_, queries);
      if (c.qk_layernorm) {
        const bool whole = c.qk_layernorm_all_heads;
        add_norm(p + "self_attention.q_layernorm", whole ? c.num_attention_heads * d_ : d_);
        add_norm(p + "self_attention.k_layernorm", whole ? c.key_value_heads() * d_ : d_);
      }
      add_linear(p + "self_attention.dense", h_, c.num_attention_heads * d_, attention);
      add_norm(p + "post_attention_layernorm", h_);
      const std::vector<int>& which = c.moe_layer_freq;
      if (c.num_experts > 1 &&
          (which.size() > 1 ? which[static_cast<size_t>(i)] == 1 : i % which[0] == 0)) {
        add_experts(p + "mlp.");
      } else {
        add_mlp(p + "mlp.", f_);
      }
    }
    add_norm(std::to_string(c.num_layers + 2), h_);
    if (c.untie_embeddings_and_output_weights) add(head_, {c.vocab_size, h_});
  }

  // tokens, labels [b, s] -> the mean of the losses of micro-batches of `rows` samples
  torch::Tensor loss(const torch::Tensor& tokens, const torch::Tensor& labels, int64_t rows) {
    const Masks masks = masks_of(tokens);
    routers_loss = torch::zeros({}, torch::kDouble);
    rows_ = rows;
    torch::Tensor x = torch::embedding(params.at(embed_ + "word_embeddings.weight"), tokens);
    if (config_.apply_embedding_scaling) x = x * std::sqrt(static_cast<double>(h_));
    if (config_.embed_layernorm) x = norm(embed_ + "word_embeddings.norm", x);
    if (config_.learned_positions())
      x = x + params.at(embed_ + "position_embeddings.weight")
                  .index({masks.positions + config_.position_embedding_offset});
    for (int i = 0; i < config_.num_layers; ++i) {
      const std::string p = std::to_string(i + 2) + ".";
      const torch::Tensor attended =
          x + attention(p + "self_attention.", norm(p + "input_layernorm", x), masks);
      const torch::Tensor normed =
          norm(p + "post_attention_layernorm", config_.use_parallel_residual ? x : attended);
      x = attended + (params.contains(p + "mlp.router.gate.weight") ? experts(p + "mlp.", normed)
                                                                    : mlp(p + "mlp.", normed, f_));
    }
    const bool untied = config_.untie_embeddings_and_output_weights;
    const torch::Tensor logits =
        torch::linear(norm(std::to_string(config_.num_layers + 2), x),
                      params.at(untied ? head_ : embed_ + "word_embeddings.weight"));
    const torch::Tensor losses =  // [b / rows, rows * s]
        torch::cross_entropy_loss(logits.flatten(0, 1), labels.flatten(), {}, /*reduction=*/0)
            .view({-1, rows * tokens.size(1)});
    const torch::Tensor counted = masks.counted.view_as(losses);
    return ((losses * counted).sum(1) / counted.sum(1)).mean();
  }

  torch::Tensor routers_loss;                   // of the last loss(), not in it
  std::map<std::string, torch::Tensor> params;  // under the names that checkpoints have

 private:
  struct Masks {
    torch::Tensor positions, unseen, counted;  // [b, s], [b, s, s] of 0 and -inf, [b, s] of 1 and 0
  };

  // As Megatron does it (get_ltor_masks_and_position_ids): one end of a document after the other.
  Masks masks_of(const torch::Tensor& tokens) const {
    const int64_t b = tokens.size(0), s = tokens.size(1);
    Masks masks{torch::arange(s).repeat({b, 1}),
                torch::full({s, s}, -INFINITY, torch::kDouble).triu(1).repeat({b, 1, 1}),
                torch::ones({b, s}, torch::kDouble)};
    if (config_.window_size != "-1,0") {
      const int64_t before = std::stoi(config_.window_size);
      masks.unseen =
          masks.unseen + torch::full({s, s}, -INFINITY, torch::kDouble).tril(-before - 1);
    }
    for (int64_t row = 0; row < b; ++row) {
      int64_t begin = 0;
      for (int64_t i = 0; i < s; ++i) {
        if (tokens[row][i].item<int64_t>() != config_.eod_token) continue;
        const int64_t next = i + 1;
        if (config_.eod_mask_loss) masks.counted[row][i] = 0;
        if (config_.reset_attention_mask)
          masks.unseen[row].narrow(0, next, s - next).narrow(1, 0, next).fill_(-INFINITY);
        if (config_.reset_position_ids)
          masks.positions[row].narrow(0, next, s - next) -= next - begin;
        begin = next;
      }
    }
    return masks;
  }

  void add(const std::string& name, std::vector<int64_t> shape) {
    params[name] = torch::zeros(shape, torch::kDouble).requires_grad_();
  }
  void add_linear(const std::string& name, int64_t out, int64_t in, bool bias) {
    add(name + ".weight", {out, in});
    if (bias) add(name + ".bias", {out});
  }
  void add_adapter(const std::string& p, const std::string& part, int64_t out, int64_t in) {
    const std::vector<std::string>& asked = config_.lora_target;
    const bool by_default = part == "q_proj" || part == "v_proj";
    if (config_.lora_rank == 0 || (asked.empty() && !by_default)) return;  // else all-linear
    add(p + part + ".lora_A.weight", {config_.lora_rank, in});
    add(p + part + ".lora_B.weight", {out, config_.lora_rank});
  }
  void add_norm(const std::string& name, int64_t width) {
    add(name + ".weight", {width});
    if (config_.normalization == "layernorm") add(name + ".bias", {width});
  }

  torch::Tensor norm(const std::string& name, const torch::Tensor& x) const {
    torch::Tensor weight = params.at(name + ".weight");
    if (config_.apply_layernorm_1p) weight = 1 + weight;
    if (config_.normalization == "layernorm")
      return torch::layer_norm(x, {x.size(-1)}, weight, params.at(name + ".bias"),
                               config_.layernorm_epsilon);
    return x / (x.square().mean(-1, true) + config_.layernorm_epsilon).sqrt() * weight;
  }

  // The change that an adapter makes to its matrix [out, in]; zeros if there is none.
  torch::Tensor change(const std::string& part, int64_t out, int64_t in) const {
    const auto a = params.find(part + ".lora_A.weight");
    if (a == params.end()) return torch::zeros({out, in}, torch::kDouble);
    return torch::matmul(params.at(part + ".lora_B.weight"), a->second) *
           (config_.lora_alpha / config_.lora_rank);
  }
  // The matrix with the changes that its adapters would merge into it: those of q, k and v go to
  // the group's block of d rows that the head has.
  torch::Tensor merged(const std::string& name) const {
    const torch::Tensor weight = params.at(name + ".weight");
    const std::string p = name.substr(0, name.rfind('.') + 1), matrix = name.substr(p.size());
    const int64_t out = weight.size(0), in = weight.size(1);
    if (matrix == "dense") return weight + change(p + "o_proj", out, in);
    if (matrix == "dense_4h_to_h") return weight + change(p + "down_proj", out, in);
    const bool gated = params.contains(p + "gate_proj.lora_A.weight");
    if (matrix == "dense_h_to_4h")
      return weight + (gated ? torch::cat({change(p + "gate_proj", out / 2, in),
                                           change(p + "up_proj", out / 2, in)})
                             : change(p + "up_proj", out, in));
    const int64_t heads = config_.num_attention_heads, groups = config_.key_value_heads(),
                  group = heads / groups;
    const torch::Tensor q = change(p + "q_proj", heads * d_, in),
                        k = change(p + "k_proj", groups * d_, in),
                        v = change(p + "v_proj", groups * d_, in);
    std::vector<torch::Tensor> blocks;
    for (int64_t g = 0; g < groups; ++g) {
      blocks.push_back(q.narrow(0, g * group * d_, group * d_));
      for (const torch::Tensor& other : {k, v}) blocks.push_back(other.narrow(0, g * d_, d_));
    }
    return weight + torch::cat(blocks);
  }

  torch::Tensor linear(const std::string& name, const torch::Tensor& x) const {
    const torch::Tensor y = torch::matmul(x, merged(name).t());
    const auto bias = params.find(name + ".bias");
    return bias == params.end() ? y : y + bias->second;
  }

  void add_mlp(const std::string& p, int64_t f) {
    const bool gated = config_.swiglu || config_.geglu, bias = config_.add_bias_linear;
    add_linear(p + "dense_h_to_4h", gated ? 2 * f : f, h_, bias);
    add_linear(p + "dense_4h_to_h", h_, f, bias);
    if (gated) add_adapter(p, "gate_proj", f, h_);
    add_adapter(p, "up_proj", f, h_);
    add_adapter(p, "down_proj", h_, f);
  }
  void add_experts(const std::string& p) {
    const int64_t e = config_.num_experts,
                  f = config_.moe_ffn_hidden_size > 0 ? config_.moe_ffn_hidden_size : f_;
    add(p + "router.gate.weight", {e, h_});
    if (config_.moe_router_enable_expert_bias) add(p + "router.e_score_correction_bias", {e});
    add(p + "experts.w1", {e, f, h_});
    add(p + "experts.w2", {e, h_, f});
    add(p + "experts.w3", {e, f, h_});
    if (config_.moe_shared_expert_intermediate_size > 0)
      add_mlp(p + "shared_experts.", config_.moe_shared_expert_intermediate_size);
    if (config_.moe_shared_expert_gate) add(p + "shared_experts_gate.weight", {1, h_});
  }

  torch::Tensor gated(const torch::Tensor& gate, const torch::Tensor& up) const {
    return (config_.swiglu ? gate * torch::sigmoid(gate) : torch::gelu(gate, "tanh")) * up;
  }

  // Every expert computes every token; those that a token did not choose count 0 times.
  torch::Tensor experts(const std::string& p, const torch::Tensor& x) {
    const int64_t count = config_.num_experts, chosen = config_.moe_router_topk;
    const bool sigmoid = config_.moe_router_score_function == "sigmoid";
    const torch::Tensor logits = torch::matmul(x, params.at(p + "router.gate.weight").t()),
                        scores = sigmoid ? torch::sigmoid(logits) : torch::softmax(logits, -1);
    const auto greatest = [&](const torch::Tensor& ranked) {  // 1 where an expert is chosen
      const torch::Tensor least = std::get<0>(ranked.topk(chosen, -1)).select(-1, chosen - 1);
      return (ranked >= least.unsqueeze(-1)).to(torch::kDouble).detach();
    };
    const torch::Tensor unbiased = greatest(scores),
                        taken =
                            config_.moe_router_enable_expert_bias
                                ? greatest(scores + params.at(p + "router.e_score_correction_bias"))
                                : unbiased,
                        shares = sigmoid ? scores / scores.sum(-1, true) : scores;
    torch::Tensor weights = scores * taken;  // [b, s, E]
    if (sigmoid ? chosen > 1 : !config_.moe_router_pre_softmax)
      weights = weights / weights.sum(-1, true);
    weights = weights * config_.moe_router_topk_scaling_factor;
    torch::Tensor y = torch::zeros_like(x);
    for (int64_t e = 0; e < count; ++e) {
      const auto weight = [&](const char* which) { return params.at(p + "experts." + which)[e]; };
      const torch::Tensor inner =
          gated(torch::matmul(x, weight("w1").t()), torch::matmul(x, weight("w3").t()));
      y = y + weights.select(-1, e).unsqueeze(-1) * torch::matmul(inner, weight("w2").t());
    }
    for (int64_t row = 0; row < x.size(0); row += rows_) {  // a micro-batch
      const auto own = [&](const torch::Tensor& t) {
        return t.narrow(0, row, rows_).flatten(0, 1);
      };
      const torch::Tensor part = own(unbiased).mean(0) / chosen,
                          loss = config_.moe_aux_loss_coeff * count *
                                     (part * own(shares).mean(0)).sum() +
                                 config_.moe_z_loss_coeff *
                                     torch::logsumexp(own(logits), -1).square().mean();
      routers_loss = routers_loss + loss * rows_ / x.size(0);
    }
    if (config_.moe_shared_expert_intermediate_size == 0) return y;
    torch::Tensor shared =
        mlp(p + "shared_experts.", x, config_.moe_shared_expert_intermediate_size);
    if (config_.moe_shared_expert_gate)
      shared = shared *
               torch::sigmoid(torch::matmul(x, params.at(p + "shared_experts_gate.weight").t()));
    return y + shared;
  }

  torch::Tensor mlp(const std::string& p, const torch::Tensor& x, int64_t f) const {
    torch::Tensor y = linear(p + "dense_h_to_4h", x);
    if (config_.swiglu || config_.geglu) {
      y = gated(y.narrow(-1, 0, f), y.narrow(-1, f, f));
    } else if (config_.relu) {
      y = torch::clamp_min(y, 0);
    } else {
      y = torch::gelu(y, config_.bias_gelu_fusion && config_.add_bias_linear ? "tanh" : "none");
    }
    return linear(p + "dense_4h_to_h", y);
  }

  torch::Tensor attention(const std::string& p, const torch::Tensor& x, const Masks& masks) const {
    const torch::Tensor rows = linear(p + "query_key_value", x);
    const int64_t s = x.size(1), group = config_.num_attention_heads / config_.key_value_heads();
    const torch::Tensor position = torch::arange(s, torch::kDouble);
    // The rows of all q or all keys, normed together.
    const auto normed = [&](const char* which, int64_t each, int64_t offset) {
      std::vector<torch::Tensor> blocks;
      for (int64_t i = 0; i < config_.num_attention_heads; ++i) {
        const int64_t first = i / group * (group + 2);
        if (i % each == 0)
          blocks.push_back(
              rows.narrow(-1, (first + offset + (each == 1 ? i % group : 0)) * d_, d_));
      }
      return norm(p + which, torch::cat(blocks, -1));
    };
    torch::Tensor all_q, all_k;
    if (config_.qk_layernorm_all_heads)
      all_q = normed("q_layernorm", 1, 0), all_k = normed("k_layernorm", group, group);
    std::vector<torch::Tensor> mixed;
    for (int64_t i = 0; i < config_.num_attention_heads; ++i) {
      const int64_t first = i / group * (group + 2);  // first of the group's blocks of d rows
      const auto block = [&](int64_t number) { return rows.narrow(-1, (first + number) * d_, d_); };
      torch::Tensor q = block(i % group), k = block(group);
      if (config_.qk_layernorm_all_heads)
        q = all_q.narrow(-1, i * d_, d_), k = all_k.narrow(-1, i / group * d_, d_);
      else if (config_.qk_layernorm)
        q = norm(p + "q_layernorm", q), k = norm(p + "k_layernorm", k);
      q = rotated(q, masks.positions), k = rotated(k, masks.positions);
      torch::Tensor scores =
          torch::matmul(q, k.transpose(-1, -2)) / std::sqrt(static_cast<double>(d_)) + masks.unseen;
      if (config_.alibi())
        scores = scores + slopes(config_.num_attention_heads)[static_cast<size_t>(i)] * position;
      mixed.push_back(torch::matmul(torch::softmax(scores, -1), block(group + 1)));
    }
    return linear(p + "dense", torch::cat(mixed, -1));
  }

  // Turns [b, s, d]: multiplies the first elements, as complex numbers, by exp(i * angle).
  torch::Tensor rotated(const torch::Tensor& x, const torch::Tensor& positions) const {
    if (!config_.rotary()) return x;
    const auto r = static_cast<int64_t>(static_cast<double>(d_) * config_.rotary_percent);
    const torch::Tensor frequency =
        1 / torch::pow(config_.rope_theta.value, torch::arange(0, r, 2, torch::kDouble) / r);
    const torch::Tensor angle = positions.unsqueeze(-1) * frequency;  // [b, s, r/2]
    const torch::Tensor turned =
        torch::complex(x.narrow(-1, 0, r / 2), x.narrow(-1, r / 2, r / 2)) *
        torch::polar(torch::ones_like(angle), angle);
    return torch::cat({torch::real(turned), torch::imag(turned), x.narrow(-1, r, d_ - r)}, -1);
  }

  // Returns slopes as the paper's authors (arXiv:2108.12409) and BLOOM build them.
  static std::vector<double> slopes(int n) {
    const double log2 = std::log2(n);
    std::vector<double> out;
    if (log2 == std::floor(log2)) {
      const double ratio = std::pow(2, -std::pow(2, -(log2 - 3)));
      for (int i = 0; i < n; ++i) out.push_back(ratio * std::pow(ratio, i));
      return out;
    }
    const int closest = 1 << static_cast<int>(log2);
    out = slopes(closest);
    const std::vector<double> twice = slopes(2 * closest);
    for (int i = 0; i < n - closest; ++i) out.push_back(twice[static_cast<size_t>(2 * i)]);
    return out;
  }

  GptConfig config_;
  int64_t rows_ = 1;  // samples of a micro-batch
  int64_t h_, f_,
      d_ = config_.kv_channels != 0 ? config_.kv_channels : h_ / config_.num_attention_heads;
  std::string embed_ = config_.untie_embeddings_and_output_weights ? "1." : "tied_modules.embed.";
  std::string head_ = std::to_string(config_.num_layers + 3) + ".lm_head.weight";
};

}  // namespace anymesh
