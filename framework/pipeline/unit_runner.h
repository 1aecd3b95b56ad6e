#pragma once

#include <torch/types.h>

#include <functional>

namespace anymesh {

// Is told when a unit of a stage (its embedding, one layer, its head) is about to be used and when
// it is done. ZeRO stage 3 is one: it holds a unit's parameters only in between.
class UnitObserver {
 public:
  virtual ~UnitObserver() = default;
  virtual void before_forward(int unit) = 0;
  virtual void after_forward(int unit) = 0;
  virtual void before_backward(int unit) = 0;
  virtual void after_backward() = 0;  // once per micro-batch
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

  torch::Tensor run(int unit, const torch::Tensor& hidden, const Forward& forward) const;
  void after_backward() const;

 private:
  UnitObserver* observer_ = nullptr;
  bool recompute_ = false;
};

// Runs a part of a unit in the same way: keeps x, and in backward runs forward(x) once more.
torch::Tensor recomputed(const torch::Tensor& x, const UnitRunner::Forward& forward);

}  // namespace anymesh
