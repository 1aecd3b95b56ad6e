#pragma once

#include <deque>
#include <functional>
#include <utility>
#include <vector>

namespace anymesh {

// Gradients that backwards have put off (UnitObserver::begin_backward), as the work that makes them
// and adds them to their sums. Each backward's is done in its order, so that sums have the bits of
// backwards that put nothing off.
class LaterGradients {
 public:
  using Work = std::function<void()>;

  // A step begins. The last one may have failed on the way.
  void clear() {
    is_open_ = false;
    of_backwards_.clear();
  }
  // Until end(), work is that of one more backward.
  void begin() {
    of_backwards_.emplace_back();
    is_open_ = true;
  }
  void end() { is_open_ = false; }
  bool is_open() const { return is_open_; }
  void add(Work work) { of_backwards_.back().push_back(std::move(work)); }
  // Does the oldest backward's work, and drops the tensors that it holds on the way.
  void make_oldest() {
    std::vector<Work> works = std::move(of_backwards_.front());
    of_backwards_.pop_front();
    for (Work& work : works) std::exchange(work, nullptr)();
  }

 private:
  bool is_open_ = false;
  std::deque<std::vector<Work>> of_backwards_;
};

}  // namespace anymesh
