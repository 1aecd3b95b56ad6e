#include "framework/zero/sum_reductions.h"

#include <algorithm>
#include <utility>

namespace anymesh {

std::vector<SumReductions::Part*> SumReductions::add(const ParamGroup& group, bool scatters,
                                                     std::optional<torch::Dtype> sent,
                                                     int64_t most) {
  std::vector<Part*> of_params;
  const size_t n = group.params.size();
  const auto start_of = [&](size_t param) {
    return param == n ? group.sums.numel() : group.layout.flat().param_offset(param);
  };
  for (size_t first = 0, last = 0; first < n; first = last) {
    const int64_t begin = start_of(first);
    while (last < n && (last == first || start_of(last) - begin < most)) ++last;
    const int64_t end = start_of(last);
    Part part(group.replicas, group.sums.narrow(0, begin, end - begin));
    for (size_t i = first; i < last; ++i)
      for (const int unit : group.params[i].units) part.unit_ = std::min(part.unit_, unit);
    part.params_ = part.missing_ = last - first;
    if (scatters) {
      const int64_t partition = group.layout.partition_numel();
      for (int64_t r = 0; r < group.partitions->size(); ++r)
        part.counts_.push_back(std::max<int64_t>(
            std::min(end, (r + 1) * partition) - std::max(begin, r * partition), 0));
      const int64_t rank = group.partitions->rank();
      part.mine_ = group.sums.narrow(0, std::clamp(rank * partition, begin, end),
                                     part.counts_[static_cast<size_t>(rank)]);
      part.sent_ = sent;
    }
    const auto later =
        std::ranges::find_if(parts_, [&](const Part& other) { return other.unit_ < part.unit_; });
    of_params.insert(of_params.end(), last - first, &*parts_.insert(later, std::move(part)));
  }
  return of_params;
}

void SumReductions::completed(Part& part) {
  TORCH_CHECK(
      part.missing_ > 0,
      "a backward gave a parameter two gradients: where a stage uses one in two units, each "
      "use needs a leaf of its own (ParamSpec::second_use)");
  --part.missing_;
  for (Part& next : parts_) {
    if (next.is_started_) continue;
    if (next.missing_ > 0) break;
    start(next);
  }
}

void SumReductions::start(Part& part) {
  part.start();
  if (!part.pending_) {
    part.travels_.reset();
    return;
  }
  under_way_.push_back(&part);
  if (under_way_.size() > kMost) end_oldest();
}

void SumReductions::end_oldest() {
  Part& part = *under_way_.front();
  under_way_.pop_front();
  std::exchange(part.pending_, nullptr)->wait();
  part.travels_.reset();
}

void SumReductions::finish() {
  for (Part& part : parts_)
    if (!part.is_started_) start(part);
  while (!under_way_.empty()) end_oldest();
  begin();
}

void SumReductions::begin() {
  under_way_.clear();
  for (Part& part : parts_) {
    part.pending_ = nullptr;
    part.travels_.reset();
    part.is_started_ = false;
    part.missing_ = part.params_;
  }
}

void SumReductions::Part::start() {
  is_started_ = true;
  if (counts_.empty()) {
    pending_ = replicas_->start_all_reduce(sums_);
    return;
  }
  travels_ = sums_.to(sent_.value_or(sums_.scalar_type()));
  pending_ = replicas_->start_reduce_scatter(mine_, travels_, counts_);
}

}  // namespace anymesh
