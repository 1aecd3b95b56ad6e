#include "vit.h"

#include <ATen/Functions.h>

#include "framework/config/require.h"
#include "framework/format/layout.h"
#include "framework/kernels/norm.h"

using namespace anymesh;

namespace {

const Init kInit = Init::normal(0.1);

// A parameter that every tp rank holds whole.
torch::Tensor whole(ParamBuilder& params, const std::string& name, std::vector<int64_t> shape,
                    Init init) {
  const bool decays = shape.size() > 1;
  return params.add({.name = name + ".weight", .shape = std::move(shape), .weight_decay = decays},
                    init);
}

}  // namespace

VitLayer::VitLayer(ParamBuilder& params, const std::string& name, const VitConfig& config)
    : head_size_(config.hidden_size / config.num_attention_heads),
      norm1_(whole(params, name + ".norm1", {config.hidden_size}, Init::constant(1))),
      norm2_(whole(params, name + ".norm2", {config.hidden_size}, Init::constant(1))),
      qkv_(params, name + ".qkv", config.hidden_size, 3 * config.hidden_size, kInit, /*bias=*/true,
           /*sub_params=*/3),
      up_(params, name + ".up", config.hidden_size, 4 * config.hidden_size, kInit),
      dense_(params, name + ".dense", config.hidden_size, config.hidden_size, kInit),
      down_(params, name + ".down", 4 * config.hidden_size, config.hidden_size, kInit) {}

torch::Tensor VitLayer::forward(const torch::Tensor& x) const {
  const int64_t b = x.size(0), s = x.size(1);
  const auto qkv = qkv_.forward(norm(x, {.weight = norm1_}))  // [b, s, 3 h/t]
                       .view({b, s, 3, -1, head_size_})
                       .permute({2, 0, 3, 1, 4})  // [3, b, n/t, s, h/n]
                       .unbind(0);
  const torch::Tensor mixed = at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2])
                                  .transpose(1, 2)
                                  .reshape({b, s, -1});  // [b, s, h/t]
  const torch::Tensor sum = x + dense_.forward(mixed);
  return sum + down_.forward(at::gelu(up_.forward(norm(sum, {.weight = norm2_}))));
}

VitStage::VitStage(const VitConfig& config, const ProcessGrid& grid, torch::Dtype dtype,
                   int64_t micro_batch_size, uint64_t seed)
    : config_(config),
      grid_(grid),
      options_(torch::dtype(dtype).device(grid.device)),
      micro_batch_size_(micro_batch_size) {
  ParamBuilder params({grid.tp, /*sequence=*/false}, options_, seed);
  const int64_t h = config.hidden_size;
  if (grid.is_first_stage()) {
    params.layer = 1;
    patches_ = whole(params, "1.patches", {h, config.pixels()}, kInit);
    positions_ = whole(params, "1.positions", {config.patches(), h}, Init::normal(0.5));
    ++params.unit;
  }
  const LayerRange range = layers_of_stage(config.num_layers, grid.topology.pp_size, grid.coord.pp);
  for (int layer = range.begin; layer < range.end; ++layer, ++params.unit) {
    params.layer = layer + 2;
    layers_.emplace_back(params, std::to_string(params.layer), config);
  }
  if (grid.is_last_stage()) {
    params.layer = config.num_layers + 2;
    const std::string name = std::to_string(params.layer);
    norm_ = whole(params, name + ".norm", {h}, Init::constant(1));
    head_ = whole(params, name + ".head", {config.num_classes, h}, kInit);
  }
  params_ = params.take();
}

torch::Tensor VitStage::forward(const torch::Tensor& input, const MicroBatch& batch) {
  torch::Tensor hidden = input;
  int unit = 0;  // as the constructor counts them
  if (grid_.is_first_stage())
    hidden = runner_.run(unit++, {}, [&](const torch::Tensor&) { return embed(batch.inputs); });
  for (const VitLayer& layer : layers_)
    hidden =
        runner_.run(unit++, hidden, [&layer](const torch::Tensor& h) { return layer.forward(h); });
  if (!grid_.is_last_stage()) return hidden;
  return runner_.run(unit, hidden, [this, labels = batch.labels](const torch::Tensor& h) {
    return labels.defined() ? at::cross_entropy_loss(logits(h), labels) : logits(h);
  });
}

torch::Tensor VitStage::empty_hidden() const {
  return torch::empty({micro_batch_size_, config_.patches(), config_.hidden_size}, options_);
}

torch::Tensor VitStage::embed(const torch::Tensor& images) const {
  const int64_t side = config_.img_size / config_.patch_dim, p = config_.patch_dim;
  const torch::Tensor patches = images.to(options_.dtype())
                                    .view({-1, side, p, side, p})
                                    .transpose(2, 3)
                                    .reshape({-1, config_.patches(), config_.pixels()});
  return at::linear(patches, patches_) + positions_;
}

torch::Tensor VitStage::logits(const torch::Tensor& hidden) const {
  return at::linear(norm(hidden, {.weight = norm_}).mean(1), head_).to(torch::kFloat);
}

void Vit::add_flags(FlagTable& flags) {
  flags.group("ViT");
  flags.add("num-layers", vit_.num_layers, "transformer layers", {.least = 1});
  flags.add("hidden-size", vit_.hidden_size, "width of a patch", {.least = 1});
  flags.add("num-attention-heads", vit_.num_attention_heads, "heads of a layer", {.least = 1});
  flags.add("patch-dim", vit_.patch_dim, "height and width of a patch", {.least = 1});
  flags.add("num-classes", vit_.num_classes, "classes of the images", {.least = 2, .most = 16});
}

ModelFacts Vit::settle(const Config& config, int /*vocab_size*/, int world_size) {
  validate(config, world_size);
  const std::string tp = with("--tensor-model-parallel-size", config.parallel.tp),
                    layers = with("--num-layers", vit_.num_layers),
                    heads = with("--num-attention-heads", vit_.num_attention_heads);
  require(vit_.img_size % vit_.patch_dim == 0, with("--patch-dim", vit_.patch_dim),
          " must divide the images' size (", vit_.img_size, ")");
  require(vit_.hidden_size % vit_.num_attention_heads == 0, heads, " must divide ",
          with("--hidden-size", vit_.hidden_size));
  require(vit_.num_attention_heads % config.parallel.tp == 0, heads, " must be divisible by ", tp);
  require(vit_.num_layers >= config.parallel.pp, layers, " must be at least ",
          with("--pipeline-model-parallel-size", config.parallel.pp));
  require(!config.parallel.sequence_parallel, "--sequence-parallel: the ViT's patches stay whole");
  return {
      .seq_length = static_cast<int>(vit_.patches()),
      .flags = {"num-layers", "hidden-size", "num-attention-heads", "patch-dim", "num-classes"}};
}

std::unique_ptr<StageModule> Vit::make_stage(const Config& config, const ProcessGrid& grid,
                                             torch::Dtype dtype) const {
  return std::make_unique<VitStage>(vit_, grid, dtype, config.batch.micro_batch_size,
                                    config.run.seed);
}
