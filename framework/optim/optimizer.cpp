#include "framework/optim/optimizer.h"

#include "framework/optim/adamw.h"
#include "framework/optim/lion.h"
#include "framework/optim/muon.h"
#include "framework/optim/sgd.h"

namespace anymesh {

void Optimizer::step(const std::vector<Tensors>& pieces, const Step& step) const {
  for (Tensors piece : pieces) {
    piece.gradient = piece.gradient * step.gradient_scale;
    update(piece, step);
    if (piece.rounded.defined()) piece.rounded.copy_(piece.weight);
  }
}

std::shared_ptr<const Optimizer> make_optimizer(const OptimizerConfig& config) {
  if (config.own && config.name == config.own->name()) return config.own;
  if (config.name == "sgd") return std::make_shared<Sgd>(config.sgd);
  if (config.name == "lion") return std::make_shared<Lion>(config.lion);
  if (config.name == "muon") return std::make_shared<Muon>(config.muon, config.adam);
  return std::make_shared<AdamW>(config.adam);
}

}  // namespace anymesh
