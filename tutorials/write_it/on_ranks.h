#pragma once

#include <ATen/Functions.h>
#include <torch/types.h>

#include <functional>

#include "framework/comm/thread_job.h"
#include "tutorials/write_it/checks.h"

namespace write_it {

// Returns a tensor's elements in their order, with all digits.
inline std::vector<std::string> words(const torch::Tensor& t) {
  const torch::Tensor all = t.detach().to(torch::kDouble).flatten().contiguous();
  std::vector<std::string> found;
  for (int64_t i = 0; i < all.numel(); ++i)
    found.push_back(digits(all.const_data_ptr<double>()[i]));
  return found;
}

// Returns small whole numbers, whose sums and products have no rounding.
inline torch::Tensor whole_numbers(at::IntArrayRef shape, int64_t seed) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return at::arange(count, torch::kLong)
      .mul(7)
      .add(seed)
      .remainder(11)
      .sub(5)
      .to(torch::kFloat)
      .view(shape);
}

// The results of a function on each rank. All ranks run it once, as threads, when the first one's result is asked for.
template <class Result>
class OnRanks {
 public:
  using Body = std::function<Result(const anymesh::CommPtr& world)>;

  OnRanks(int ranks, Body body) : ranks_(ranks), body_(std::move(body)) {}

  // Throws what a rank has thrown.
  const Result& of(int rank) {
    if (results_.empty()) run();
    if (error_) std::rethrow_exception(error_);
    return results_[static_cast<size_t>(rank)];
  }

 private:
  void run() {
    results_.resize(static_cast<size_t>(ranks_));
    try {
      anymesh::run_on_threads(ranks_, [&](const anymesh::Job& job) {
        const anymesh::CommPtr world = job.world();
        results_[static_cast<size_t>(world->rank())] = body_(world);
      });
    } catch (...) {
      error_ = std::current_exception();
    }
  }

  int ranks_;
  Body body_;
  std::vector<Result> results_;
  std::exception_ptr error_;
};

}  // namespace write_it
