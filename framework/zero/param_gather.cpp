#include "framework/zero/param_gather.h"

#include <ATen/ops/_foreach_copy.h>

#include <algorithm>

namespace anymesh {

ParamGather::ParamGather(const ParamGroup& group, bool beside, int64_t part)
    : group_(group),
      beside_(beside),
      most_(beside ? 2 : 1),
      ranks_(group.partitions->size()),
      rank_(group.partitions->rank()),
      partition_(group.layout.partition_numel()),
      part_(part),
      all_((partition_ + part_ - 1) / part_) {
  ended_ = started_ = all_;
  for (const ParamSpec& spec : group.params) flat_.push_back(spec.tensor.detach().view(-1));
  for (int rank = 0; rank < ranks_; ++rank) {
    fragments_.push_back(group.layout.fragments(rank));
    for (const Fragment& f : fragments_.back()) {
      for (const int unit : group.params[f.param].units) {
        needed_.resize(std::max(needed_.size(), static_cast<size_t>(unit) + 1));
        int64_t& needed = needed_[static_cast<size_t>(unit)];
        needed = std::max(needed, (f.partition_start + f.numel + part_ - 1) / part_);
      }
    }
  }
}

void ParamGather::start() {
  finish();
  ended_ = started_ = 0;
  while (started_ < all_ && under_way_.size() < most_) start_next();
  if (!beside_) finish();
}

void ParamGather::before(int unit) {
  const auto i = static_cast<size_t>(unit);
  if (i < needed_.size()) end(needed_[i]);
}

void ParamGather::finish() { end(all_); }

void ParamGather::end(int64_t windows) {
  while (ended_ < windows) end_oldest();
}

ParamGather::Places ParamGather::places_of(const Window& window, bool mine) const {
  Places at;
  for (int rank = 0; rank < ranks_; ++rank) {
    if ((rank == rank_) != mine) continue;
    for (const Fragment& f : fragments_[static_cast<size_t>(rank)]) {
      const int64_t from = std::max(f.partition_start, window.begin),
                    to = std::min(f.partition_start + f.numel, window.begin + window.count);
      if (from >= to) continue;
      at.params.push_back(
          flat_[f.param].narrow(0, f.param_start + from - f.partition_start, to - from));
      at.places.push_back(window.buffer[rank].narrow(0, from - window.begin, to - from));
    }
  }
  return at;
}

void ParamGather::start_next() {
  const int64_t begin = started_++ * part_, count = std::min(part_, partition_ - begin);
  Window& window = under_way_.emplace_back(
      Window{begin, count, torch::empty({ranks_, count}, flat_[0].options()), nullptr});
  const Places own = places_of(window, /*mine=*/true);
  if (!own.params.empty()) at::_foreach_copy_(own.places, own.params);
  window.pending = group_.partitions->start_all_gather(window.buffer, window.buffer[rank_]);
}

void ParamGather::end_oldest() {
  const c10::NoGradGuard no_grad;
  Window& window = under_way_.front();
  window.pending->wait();
  const Places others = places_of(window, /*mine=*/false);
  if (!others.params.empty()) at::_foreach_copy_(others.params, others.places);  // few launches
  under_way_.pop_front();
  ++ended_;
  if (started_ < all_) start_next();
}

}  // namespace anymesh
