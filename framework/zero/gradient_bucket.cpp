#include "framework/zero/gradient_bucket.h"

#include <numeric>
#include <utility>

#include "framework/zero/gradient_sum.h"

namespace anymesh {

GradientBucket::GradientBucket(const PartitionLayout& layout, size_t first, size_t last, CommPtr dp,
                               torch::Tensor sums, int64_t base, std::optional<torch::Dtype> sent,
                               BucketReductions* reductions)
    : params_(last - first),
      first_(first),
      dp_(std::move(dp)),
      sums_(std::move(sums)),
      runs_(params_),
      base_(base),
      sent_(sent),
      reductions_(reductions) {
  int64_t start = 0;
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    const int64_t begin = start;
    for (const Fragment& f : layout.fragments(rank)) {
      if (f.param < first || f.param >= last) continue;
      place({f.param, f.param_start, start, f.numel});
      if (rank == dp_->rank()) mine_.push_back(f);
      start += f.numel;
    }
    counts_.push_back(start - begin);
  }
}

// Adds a fragment to the last run of its parameter, if it is the next one of it.
void GradientBucket::place(const Fragment& f) {
  std::vector<Run>& runs = runs_[f.param - first_];
  if (!runs.empty()) {
    Run& run = runs.back();
    const int64_t stride =
        f.partition_start - run.first.partition_start - (run.rows - 1) * run.stride;
    const bool follows = f.numel == run.first.numel &&
                         f.param_start == run.first.param_start + run.rows * run.first.numel;
    if (follows && (run.rows == 1 || stride == run.stride)) {
      run.stride = stride;
      ++run.rows;
      return;
    }
  }
  runs.push_back({f, 1, f.numel});
}

void GradientBucket::add(size_t param, const torch::Tensor& gradient) {
  if (gradient.is_sparse()) return add(param, dense(gradient));
  if (!buffer_.defined()) {
    buffer_ = torch::zeros({std::accumulate(counts_.begin(), counts_.end(), int64_t{0})},
                           gradient.options().dtype(sent_.value_or(gradient.scalar_type())));
    reductions_->bytes.add(buffer_);
  }
  const torch::Tensor flat = gradient.flatten();
  for (const auto& [from, rows, stride] : runs_[param - first_]) {
    buffer_.as_strided({rows, from.numel}, {stride, 1}, from.partition_start)
        .copy_(flat.narrow(0, from.param_start, rows * from.numel).view({rows, from.numel}));
  }
  if (++arrived_ == params_) flush();
}

void GradientBucket::flush() {
  if (!buffer_.defined()) return;
  const int64_t count = counts_[static_cast<size_t>(dp_->rank())];
  const torch::Tensor sum = torch::empty({count}, sums_.options());
  auto pending = dp_->start_reduce_scatter(sum, buffer_, counts_);
  const bool runs = pending != nullptr;
  under_way_.push_back({std::exchange(buffer_, {}), sum, std::move(pending)});
  arrived_ = 0;
  if (runs)
    reductions_->started(*this);
  else
    finish();
}

void GradientBucket::finish() {
  const Reduction done = std::move(under_way_.front());
  under_way_.pop_front();
  if (done.pending) done.pending->wait();
  int64_t start = 0;
  for (const Fragment& f : mine_) {
    sums_.narrow(0, f.partition_start - base_, f.numel).add_(done.sum.narrow(0, start, f.numel));
    start += f.numel;
  }
  reductions_->bytes.remove(done.buffer);
}

void BucketReductions::started(GradientBucket& bucket) {
  under_way_.push_back(&bucket);
  if (under_way_.size() > kMost) finish_oldest();
}

void BucketReductions::finish_all() {
  while (!under_way_.empty()) finish_oldest();
}

void BucketReductions::finish_oldest() {
  GradientBucket* const oldest = under_way_.front();
  under_way_.pop_front();
  oldest->finish();
}

}  // namespace anymesh
