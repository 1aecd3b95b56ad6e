#include "framework/pipeline/text_model.h"

#include <ATen/Functions.h>
#include <c10/core/InferenceMode.h>

namespace anymesh {

torch::Tensor StageTextModel::append(const torch::Tensor& tokens) {
  const c10::InferenceMode no_gradients;
  tokens_ = tokens_.defined() ? at::cat({tokens_, tokens}, 1) : tokens;
  const torch::Tensor logits = stage_.forward({}, {.inputs = tokens_});  // [b, s, v]
  return logits.select(1, logits.size(1) - 1);
}

}  // namespace anymesh
