#pragma once

#include <torch/types.h>

#include <functional>

namespace anymesh {

// Is told when a unit of a stage (its embedding, one layer, its head) is about to be used and when
// it is done. ZeRO is one: at stage 3 it holds a unit's parameters only in between.
class UnitObserver {
 public:
  virtual ~UnitObserver() = default;
  virtual void before_forward(int unit) = 0;
  virtual void after_forward(int unit) = 0;
  virtual void before_backward(int unit) = 0;

  // Around the backward of a micro-batch, which is the last of the step for its chunk or not. With
  // `splits` it puts off the gradients of parameters, until make_gradients().
  virtual void begin_backward(bool splits, bool is_last) = 0;
  virtual void end_backward() = 0;
  // Makes the gradients of the oldest backward that put them off.
  virtual void make_gradients(bool is_last) = 0;
};

// Runs the units of a stage. A model calls run() for each and is otherwise unaware of the observer
// and of recomputation:
//
//   hidden = runner.run(1, hidden, [&](const torch::Tensor& h) { return layer.forward(h); });
//
// With recomputation (activation checkpointing, arXiv:1604.06174) only a unit's input is kept, and
// its forward runs once more in backward. Dropout draws the same masks both times.
class UnitRunner {
 public:
  using Forward = std::function<torch::Tensor(const torch::Tensor&)>;

  void set_observer(UnitObserver* observer) { observer_ = observer; }
  void set_recompute(bool recompute) { recompute_ = recompute; }

  void begin_backward(bool splits, bool is_last) const {
    if (observer_) observer_->begin_backward(splits, is_last);
  }
  void end_backward() const {
    if (observer_) observer_->end_backward();
  }
  void make_gradients(bool is_last) const {
    if (observer_) observer_->make_gradients(is_last);
  }

  torch::Tensor run(int unit, const torch::Tensor& hidden, const Forward& forward) const;

 private:
  UnitObserver* observer_ = nullptr;
  bool recompute_ = false;
};

// Runs a part of a unit in the same way: keeps x, and in backward runs forward(x) once more.
torch::Tensor recomputed(const torch::Tensor& x, const UnitRunner::Forward& forward);

}  // namespace anymesh
