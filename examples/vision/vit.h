#pragma once

#include <memory>
#include <vector>

#include "framework/pipeline/stage.h"
#include "framework/run/pretrain.h"
#include "framework/tensor_parallel/layers.h"

// A small vision transformer (arXiv:2010.11929), without dropout:
//
//   patches    hidden = patches of the image * table + positions     1.{patches,positions}.weight
//   layer l    hidden += dense(attention(qkv(norm(hidden))))         <l+2>.{norm1,qkv,dense}
//              hidden += down(gelu(up(norm(hidden))))                <l+2>.{norm2,up,down}
//   head       logits = head(mean over patches of norm(hidden))      <L+2>.{norm,head}.weight
//
// Shapes: b micro-batch, s patches, p pixels of a patch, h hidden, n heads, c classes, t tp size.
struct VitConfig {
  int num_layers = 2, hidden_size = 32, num_attention_heads = 4;
  int img_size = 16, patch_dim = 4, num_classes = 8;

  int64_t patches() const { return int64_t{img_size / patch_dim} * (img_size / patch_dim); }
  int64_t pixels() const { return int64_t{patch_dim} * patch_dim; }
};

class VitLayer {
 public:
  VitLayer(anymesh::ParamBuilder& params, const std::string& name, const VitConfig& config);
  torch::Tensor forward(const torch::Tensor& hidden) const;  // [b, s, h] -> [b, s, h]

 private:
  int64_t head_size_;
  torch::Tensor norm1_, norm2_;  // [h]
  anymesh::ColumnParallelLinear qkv_, up_;
  anymesh::RowParallelLinear dense_, down_;
};

// One stage: [patches] layers [head, loss]. The brackets are on the first and last stage.
class VitStage final : public anymesh::StageModule {
 public:
  VitStage(const VitConfig& config, const anymesh::ProcessGrid& grid, torch::Dtype dtype,
           int64_t micro_batch_size, uint64_t seed);

  // Takes images [b, 1, img_size, img_size] and labels [b]. Logits are [b, c] on every tp rank.
  torch::Tensor forward(const torch::Tensor& hidden, const anymesh::MicroBatch& batch) override;
  torch::Tensor empty_hidden() const override;
  const std::vector<anymesh::ParamSpec>& params() const override { return params_; }

 private:
  torch::Tensor embed(const torch::Tensor& images) const;   // -> [b, s, h]
  torch::Tensor logits(const torch::Tensor& hidden) const;  // -> [b, c]

  VitConfig config_;
  const anymesh::ProcessGrid& grid_;
  torch::TensorOptions options_;
  int64_t micro_batch_size_;
  torch::Tensor patches_, positions_, norm_, head_;  // [h, p], [s, h], [h], [c, h]
  std::vector<VitLayer> layers_;
  std::vector<anymesh::ParamSpec> params_;
};

class Vit final : public anymesh::ModelDefinition {
 public:
  void add_flags(anymesh::FlagTable& flags) override;
  anymesh::ModelFacts settle(const anymesh::Config& config, int vocab_size,
                             int world_size) override;
  std::unique_ptr<anymesh::StageModule> make_stage(const anymesh::Config& config,
                                                   const anymesh::ProcessGrid& grid,
                                                   torch::Dtype dtype) const override;
  const VitConfig& config() const { return vit_; }

 private:
  VitConfig vit_;
};
