#include "framework/zero/gradient_bucket.h"

#include <numeric>

#include "framework/zero/gradient_sum.h"

namespace anymesh {

GradientBucket::GradientBucket(const PartitionLayout& layout, size_t first, size_t last, CommPtr dp,
                               torch::Tensor sums, int64_t base, ByteGauge* gauge)
    : params_(last - first),
      dp_(std::move(dp)),
      sums_(std::move(sums)),
      base_(base),
      gauge_(gauge) {
  int64_t start = 0;
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    const int64_t begin = start;
    for (const Fragment& f : layout.fragments(rank)) {
      if (f.param < first || f.param >= last) continue;
      places_.push_back({f.param, f.param_start, start, f.numel});
      if (rank == dp_->rank()) mine_.push_back(f);
      start += f.numel;
    }
    counts_.push_back(start - begin);
  }
}

void GradientBucket::add(size_t param, const torch::Tensor& gradient) {
  if (gradient.is_sparse()) return add(param, dense(gradient));
  if (!buffer_.defined()) {
    buffer_ = torch::zeros({std::accumulate(counts_.begin(), counts_.end(), int64_t{0})},
                           gradient.options());
    gauge_->add(buffer_);
  }
  const torch::Tensor flat = gradient.flatten();
  for (const Fragment& p : places_) {
    if (p.param != param) continue;
    buffer_.narrow(0, p.partition_start, p.numel).copy_(flat.narrow(0, p.param_start, p.numel));
  }
  if (++arrived_ == params_) flush();
}

void GradientBucket::flush() {
  if (!buffer_.defined()) return;
  const int64_t count = counts_[static_cast<size_t>(dp_->rank())];
  torch::Tensor sum = torch::empty({count}, sums_.options());
  dp_->reduce_scatter(sum, buffer_, counts_);
  int64_t start = 0;
  for (const Fragment& f : mine_) {
    sums_.narrow(0, f.partition_start - base_, f.numel).add_(sum.narrow(0, start, f.numel));
    start += f.numel;
  }
  gauge_->remove(buffer_);
  buffer_.reset();
  arrived_ = 0;
}

}  // namespace anymesh
