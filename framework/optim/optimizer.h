#pragma once

#include <torch/types.h>

#include <memory>
#include <string>
#include <vector>

#include "framework/format/torch_file.h"
#include "framework/optim/options.h"

namespace anymesh {

class FlagTable;
struct ParamSpec;

// An optimizer: the states that it keeps of each parameter, and the step that it makes. It knows no
// ranks. ZeRO cuts its states as it cuts the weights, moves them to disk, and counts them in the
// memory's forecast. Saves, loads and universal folders (zero/<parameter>/<state>.pt) name them.
// A new one needs its name, its states and update():
//
//   class Lion final : public Optimizer {
//     std::string name() const override { return "Lion"; }
//     std::vector<std::string> states() const override { return {"exp_avg"}; }
//     void update(const Tensors& t, const Step& step) const override { ... }
//   };
//
// A state has a number for each element of the weight, zero before the first step. An optimizer
// that sees matrices may have others (whole_states()). The count of steps is one for all
// parameters. Updates must be elementwise, one rounding per operator: ranks cut tensors at
// different places, and the bits must not tell. So add_(x, alpha), lerp_ and addcmul_ are out of
// place: LibTorch rounds them once in vectors and twice in the rest.
class Optimizer {
 public:
  virtual ~Optimizer() = default;

  // A piece of a parameter: 1-D tensors [n], contiguous. All but `rounded` have one dtype, fp32 or
  // float64.
  struct Tensors {
    torch::Tensor weight, gradient;
    std::vector<torch::Tensor> states;  // in the order of states()
    torch::Tensor rounded;  // if defined, receives the weight in its own dtype, bf16 or fp16
  };
  struct Step {
    int64_t number;           // 1 is the first
    double lr, weight_decay;  // the rate times lr_scale()
    double gradient_scale;    // of the gradients in `Tensors`: the clip coefficient, or 1
  };

  // Its name in messages and in checkpoints' param_groups. A checkpoint of another name, or of
  // another version of its states' meaning, is refused.
  virtual std::string name() const = 0;
  virtual int version() const { return 1; }
  // The states' names, which are file names: letters, digits and underscores.
  virtual std::vector<std::string> states() const { return {}; }
  // Its learning rate over the run's.
  virtual double lr_scale() const { return 1; }
  // Whether a step depends on Step::number. If so, a load needs the checkpoint's `step`.
  virtual bool counts_steps() const { return false; }

  // Makes a step on pieces of parameters. By default it gives update() one after the other, with
  // the scaled gradient, and rounds the weight.
  virtual void step(const std::vector<Tensors>& pieces, const Step& step) const;
  // Changes the weight and the states in place.
  virtual void update(const Tensors& tensors, const Step& step) const = 0;

  // The optimizer of a parameter. Muon leaves all but matrices to AdamW. It lives as long as *this.
  virtual const Optimizer& of(const ParamSpec&) const { return *this; }

  // An optimizer that sees whole matrices, or whole parameters of any shape, has three phases:
  // prepare() on pieces, then of_matrix() on one rank for each parameter, then step() on pieces.
  virtual bool sees_matrices() const { return false; }
  // A state of a whole parameter, of any shape: factors, a preconditioner, or a number (no dims).
  struct WholeState {
    std::string name;
    std::vector<int64_t> shape;
  };
  // Those of a parameter of this shape, which of_matrix() changes. All ranks that hold the
  // parameter have them in memory, zero before the first step. Experts cannot have any.
  virtual std::vector<WholeState> whole_states(const std::vector<int64_t>&) const { return {}; }
  // Changes the states, and puts what of_matrix() is to see in place of the gradient.
  virtual void prepare(const Tensors&, const Step&) const {}
  // Returns a tensor of the same shape, [m, n] or [experts, m, n], that becomes the gradient.
  // Changes the whole states in place; they are in the order of whole_states().
  virtual torch::Tensor of_matrix(const torch::Tensor& matrix, const std::vector<torch::Tensor>&,
                                  const Step&) const {
    return matrix;
  }

  // A setting as a checkpoint's param_groups have it, under torch's key. If a checkpoint has
  // another value and there is a flag, a load says that the run goes on with the flag's.
  struct Setting {
    std::string key;
    Value value;
    std::string flag = {};
  };
  virtual std::vector<Setting> settings() const { return {}; }

  // Declares its flags, for the optimizer of a program of one's own.
  virtual void add_flags(FlagTable&) {}
};

// Returns the optimizer that the configuration chooses.
std::shared_ptr<const Optimizer> make_optimizer(const OptimizerConfig& config);

}  // namespace anymesh
