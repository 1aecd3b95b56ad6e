#pragma once

#include <torch/nn.h>

#include <map>
#include <string>
#include <vector>

#include "models/gpt/gpt_config.h"

namespace anymesh {

// The reference: the same GPT in plain torch::nn, one process, nothing of ours but the config and
// the parameter names.
struct DenseGpt : torch::nn::Module {
  struct Block {
    torch::nn::LayerNorm norm1 = nullptr, norm2 = nullptr;
    torch::nn::Linear qkv = nullptr, dense = nullptr, up = nullptr, down = nullptr;
  };

  explicit DenseGpt(const GptConfig& c) : config(c) {
    const int64_t h = c.hidden_size;
    words = register_module("words", torch::nn::Embedding(c.vocab_size, h));
    positions = register_module("positions", torch::nn::Embedding(c.max_position_embeddings, h));
    const auto norm = [&](const std::string& name) {
      return register_module(
          name, torch::nn::LayerNorm(torch::nn::LayerNormOptions({h}).eps(c.layernorm_epsilon)));
    };
    for (int i = 0; i < c.num_layers; ++i) {
      const std::string n = std::to_string(i);
      blocks.push_back({.norm1 = norm("norm1_" + n),
                        .norm2 = norm("norm2_" + n),
                        .qkv = register_module("qkv" + n, torch::nn::Linear(h, 3 * h)),
                        .dense = register_module("dense" + n, torch::nn::Linear(h, h)),
                        .up = register_module("up" + n, torch::nn::Linear(h, c.ffn_size())),
                        .down = register_module("down" + n, torch::nn::Linear(c.ffn_size(), h))});
    }
    final_norm = norm("final_norm");
    if (c.untie_embeddings_and_output_weights) {
      head = register_module(
          "head", torch::nn::Linear(torch::nn::LinearOptions(h, c.vocab_size).bias(false)));
    }
    to(torch::kDouble);
  }

  // The parameters under the names that checkpoints have.
  std::map<std::string, torch::Tensor> by_name() const {
    const bool tied = !config.untie_embeddings_and_output_weights;
    const std::string embed = tied ? "tied_modules.embed." : "1.";
    std::map<std::string, torch::Tensor> out{
        {embed + "word_embeddings.weight", words->weight},
        {embed + "position_embeddings.weight", positions->weight}};
    for (size_t i = 0; i < blocks.size(); ++i) {
      const std::string p = std::to_string(i + 2) + ".";
      const Block& b = blocks[i];
      out[p + "input_layernorm.weight"] = b.norm1->weight;
      out[p + "input_layernorm.bias"] = b.norm1->bias;
      out[p + "self_attention.query_key_value.weight"] = b.qkv->weight;
      out[p + "self_attention.query_key_value.bias"] = b.qkv->bias;
      out[p + "self_attention.dense.weight"] = b.dense->weight;
      out[p + "self_attention.dense.bias"] = b.dense->bias;
      out[p + "post_attention_layernorm.weight"] = b.norm2->weight;
      out[p + "post_attention_layernorm.bias"] = b.norm2->bias;
      out[p + "mlp.dense_h_to_4h.weight"] = b.up->weight;
      out[p + "mlp.dense_h_to_4h.bias"] = b.up->bias;
      out[p + "mlp.dense_4h_to_h.weight"] = b.down->weight;
      out[p + "mlp.dense_4h_to_h.bias"] = b.down->bias;
    }
    const std::string norm = std::to_string(config.num_layers + 2) + ".";
    out[norm + "weight"] = final_norm->weight;
    out[norm + "bias"] = final_norm->bias;
    if (!tied) out[std::to_string(config.num_layers + 3) + ".lm_head.weight"] = head->weight;
    return out;
  }

  // tokens, labels [b, s] -> mean loss
  torch::Tensor loss(const torch::Tensor& tokens, const torch::Tensor& labels) {
    const int64_t b = tokens.size(0), s = tokens.size(1), n = config.num_attention_heads,
                  d = config.hidden_size / n;
    torch::Tensor x = words(tokens) + positions(torch::arange(s));
    const torch::Tensor mask = torch::full({s, s}, -INFINITY, torch::kDouble).triu(1);
    for (Block& block : blocks) {
      const torch::Tensor qkv =
          block.qkv(block.norm1(x)).view({b, s, n, 3, d}).permute({3, 0, 2, 1, 4});
      const torch::Tensor scores =
          torch::matmul(qkv[0], qkv[1].transpose(-1, -2)) / std::sqrt(static_cast<double>(d)) +
          mask;
      const torch::Tensor mixed = torch::matmul(torch::softmax(scores, -1), qkv[2]);
      x = x + block.dense(mixed.transpose(1, 2).reshape({b, s, n * d}));
      x = x + block.down(
                  torch::gelu(block.up(block.norm2(x)), config.bias_gelu_fusion ? "tanh" : "none"));
    }
    const torch::Tensor table =
        config.untie_embeddings_and_output_weights ? head->weight : words->weight;
    const torch::Tensor logits = torch::linear(final_norm(x), table);
    return torch::cross_entropy_loss(logits.flatten(0, 1), labels.flatten());
  }

  GptConfig config;
  torch::nn::Embedding words = nullptr, positions = nullptr;
  std::vector<Block> blocks;
  torch::nn::LayerNorm final_norm = nullptr;
  torch::nn::Linear head = nullptr;
};

}  // namespace anymesh
