#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "framework/comm/tensor_parallel.h"

namespace anymesh {

// A parameter, as everything outside the layer that owns it sees it: how it is named in files, how
// tensor parallelism cuts it, who else holds it. Said once, where the layer makes it; the gradient
// norm, ZeRO, the checkpoint and the converter's patterns all read it here.
struct ParamSpec {
  std::string name;            // Megatron-DeepSpeed's, e.g. "2.self_attention.dense.weight"
  std::string other_name;      // that loads accept too, for checkpoints that name it differently
  int layer = 0;               // of the checkpoint's layer file; set by the builder
  std::vector<int64_t> shape;  // of the whole tensor, with the true vocabulary
  int split_dim = -1;          // the dim that tp cuts; -1 = every tp rank holds the whole
  int sub_params = 1;  // equal parts of that dim, each cut by itself: 2 for SwiGLU's [gate; up]
  bool vocabulary = false;    // dim 0 is the vocabulary: padded, cut evenly; padding rows stay zero
  bool weight_decay = true;   // false for biases and norms
  bool tied = false;          // the first and the last stage both hold it
  bool sequence_sum = false;  // each tp rank has its part of the gradient, which tp adds up
  bool duplicate = false;     // a copy whose gradient another rank counts in the norm
  std::vector<int> units;     // of its stage, that use it; set by the builder
  torch::Tensor tensor;       // the leaf [shape, cut]
  torch::Tensor second_use;   // where a stage uses a tied weight twice: a leaf on the same storage

  // Whether training leaves it as it is, as in PyTorch: its leaf wants no gradient.
  bool frozen() const { return !tensor.requires_grad(); }

  // Writes elements [begin, begin + out.numel()) of `tensor`, flattened, as training starts.
  std::function<void(int64_t begin, const torch::Tensor& out)> initialize;

  // Gives `tensor`, which is made without memory (storage.h), its memory and its initial values.
  // ZeroOptimizer does it for what a rank keeps whole.
  void materialize() const;

  // Its key in the layer file: the name without "2." or "tied_modules.embed.".
  std::string name_in_layer() const;
};

// Freezes the parameters, of all stages of `pp`, in whose name a pattern is found (an ECMAScript
// regular expression): they get no gradient, optimizer state and weight decay. To be called before
// the ZeroOptimizer is made. Collective; throws CollectiveError for a pattern that is not one or is
// found nowhere, and if nothing would be left to train. Returns `params`.
//
//   freeze_params(stage.params(), {"word_embeddings", "^[2-5]\\."}, *grid.pp);
const std::vector<ParamSpec>& freeze_params(const std::vector<ParamSpec>& params,
                                            const std::vector<std::string>& patterns,
                                            Communicator& pp);

// How a parameter starts.
struct Init {
  static Init constant(double value) { return {value, 0}; }
  static Init normal(double std) { return {0, std}; }
  double mean = 0, std = 0;
};

// Makes a stage's parameters, in the order in which DeepSpeed would flatten them. Each element is a
// function of (seed, name, index in the whole tensor), hence the same on every mesh. Leaves have no
// memory yet: what of a parameter a rank will keep, it makes itself (ParamSpec::initialize).
class ParamBuilder {
 public:
  // `options`: dtype, and device if it is not the CPU.
  ParamBuilder(TensorParallel tp, torch::TensorOptions options, uint64_t seed)
      : tp_(std::move(tp)), options_(options), seed_(seed) {}

  // Rows of the padded vocabulary are a multiple of this times the tp size
  // (--make-vocab-size-divisible-by).
  int64_t vocabulary_multiple = 1;

  // The layer file, and the unit of the stage, that parameters made from here on belong to.
  int layer = 0, unit = 0;

  // `spec` without its tensors. Returns the leaf.
  torch::Tensor add(ParamSpec spec, Init init);

  // A second leaf on the storage of the parameter `name`, for a stage that uses it twice: its
  // gradient is kept apart.
  torch::Tensor use_again(const std::string& name);

  const TensorParallel& tp() const { return tp_; }
  std::vector<ParamSpec> take() { return std::move(specs_); }

 private:
  TensorParallel tp_;
  torch::TensorOptions options_;
  uint64_t seed_;
  std::vector<ParamSpec> specs_;
};

}  // namespace anymesh
