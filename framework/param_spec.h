#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "framework/comm/expert_parallel.h"
#include "framework/comm/tensor_parallel.h"
#include "framework/comm/topology.h"

namespace anymesh {

// Describes a parameter to everything outside the layer that owns it: its name in files, how tensor
// parallelism cuts it, and who else holds it. The layer sets it once, where it makes the parameter.
// The gradient norm, ZeRO, the checkpoint and the converter's patterns all read it.
struct ParamSpec {
  std::string name;            // the Megatron-DeepSpeed name, e.g. "2.self_attention.dense.weight"
  std::string other_name;      // a second name that loads accept, for other checkpoints
  int layer = 0;               // the number of the checkpoint's layer file; set by the builder
  std::vector<int64_t> shape;  // the whole tensor's, with the true vocabulary
  int split_dim = -1;          // the dim that tp cuts; -1 if every tp rank holds the whole
  int sub_params = 1;    // equal parts of that dim, each cut separately: 2 for SwiGLU's [gate; up]
  bool experts = false;  // dim 0 counts experts, which ep cuts; tp may cut a later dim
  bool vocabulary = false;   // dim 0 is the vocabulary: padded, cut evenly; padding rows stay zero
  bool looked_up = false;    // another table, whose rows are looked up: no matrix to Muon
  bool weight_decay = true;  // false for biases and norms
  bool tied = false;         // the first and the last stage both hold it
  bool tp_sum = false;       // each tp rank has a partial gradient, and tp sums them
  bool buffer = false;     // no parameter: the model changes it itself, in fp32 at least, and every
                           // rank holds the whole, at every ZeRO stage
  bool duplicate = false;  // a copy; another rank counts its gradient in the norm
  std::vector<int> units;  // the stage's units that use it; set by the builder
  int chunk = 0;           // the stage's chunk (pipeline/stage.h) that has them; as well
  torch::Tensor tensor;    // the leaf [shape, cut]
  torch::Tensor second_use;  // a leaf on the same storage, if a stage uses a tied weight twice

  // Whether training leaves it unchanged. As in PyTorch, its leaf then requires no gradient.
  bool frozen() const { return !buffer && !tensor.requires_grad(); }

  // Writes the initial values of elements [begin, begin + out.numel()) of the flattened `tensor`.
  std::function<void(int64_t begin, const torch::Tensor& out)> initialize;

  // Allocates `tensor`, which is made without memory (storage.h), and writes its initial values.
  // ZeroOptimizer calls this for the tensors that a rank keeps whole.
  void materialize() const;

  // The place of a rank among those of its stage that hold the same elements, and their number.
  std::pair<int, int> replica_at(const Topology& mesh, Coord at) const;
  // Whether a rank has elements that no rank of its stage before it has. With `partitioned`, each
  // replica has a part of its own.
  bool counts_at(const Topology& mesh, Coord at, bool partitioned) const;

  // The key in the layer file: the name without "2." or "tied_modules.embed.".
  std::string name_in_layer() const;
};

// Freezes the parameters, over all stages of `pp`, whose names contain a match of a pattern (an
// ECMAScript regular expression). They get no gradient, optimizer state or weight decay. Call this
// before making the ZeroOptimizer. Collective. Throws CollectiveError if a pattern is not a regular
// expression or matches no name, or if nothing would be left to train. Returns `params`.
//
//   freeze_params(stage.params(), {"word_embeddings", "^[2-5]\\."}, *grid.pp);
const std::vector<ParamSpec>& freeze_params(const std::vector<ParamSpec>& params,
                                            const std::vector<std::string>& patterns,
                                            Communicator& pp);

// A parameter's initial distribution.
struct Init {
  static Init constant(double value) { return {value, 0}; }
  static Init normal(double std) { return {0, std}; }
  double mean = 0, std = 0;
};

// Makes a stage's parameters, in the order in which DeepSpeed would flatten them. Each element is a
// function of (seed, name, index in the whole tensor), hence the same on every mesh. Leaves have no
// memory yet: a rank allocates and initialises only the part that it keeps (ParamSpec::initialize).
class ParamBuilder {
 public:
  // `options` gives the dtype, and the device if it is not the CPU.
  ParamBuilder(TensorParallel tp, torch::TensorOptions options, uint64_t seed)
      : tp_(std::move(tp)), options_(options), seed_(seed) {}

  // The padded vocabulary's rows are a multiple of this times the tp size
  // (--make-vocab-size-divisible-by).
  int64_t vocabulary_multiple = 1;

  // The ranks that share the experts. With ep.whole, tp does not cut them, whatever their
  // split_dim.
  ExpertParallel ep;

  // The layer file, and the stage's unit and chunk, of the parameters added from now on.
  int layer = 0, unit = 0, chunk = 0;

  // Adds a parameter; `spec` comes without its tensors. Returns the leaf.
  torch::Tensor add(ParamSpec spec, Init init);

  // Adds a second leaf on the storage of the parameter `name`, for a stage that uses it twice. Its
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
