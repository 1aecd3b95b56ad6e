#include "framework/zero/sharded_params.h"

#include <algorithm>
#include <utility>

#include "framework/storage.h"

namespace anymesh {

ShardedParams::ShardedParams(std::vector<Shard> shards, std::vector<int> chunks, CommPtr dp)
    : shards_(std::move(shards)),
      chunks_(std::move(chunks)),
      dp_(std::move(dp)),
      users_(shards_.size(), 0) {
  for (size_t i = 0; i < shards_.size(); ++i) {
    for (const int unit : shards_[i].units) {
      if (static_cast<size_t>(unit) >= units_.size()) units_.resize(static_cast<size_t>(unit) + 1);
      Unit& user = units_[static_cast<size_t>(unit)];
      user.shards.push_back(i);
      user.part_numel += shards_[i].part.numel();
    }
  }
}

void ShardedParams::before_forward(int unit) { gather_and_look_ahead(unit, 1); }

// By now the units after this one have done their backward.
void ShardedParams::before_backward(int unit) {
  for (int other = 0; other < static_cast<int>(units_.size()); ++other) {
    if (other != unit) release(other);
  }
  gather_and_look_ahead(unit, -1);
}

void ShardedParams::gather_and_look_ahead(int unit, int direction) {
  gather(unit);
  const auto chunk_of = [&](int each) {  // a unit may have no parameters
    const auto i = static_cast<size_t>(each);
    return i < chunks_.size() ? chunks_[i] : 0;
  };
  const auto follows = [&](int other) {
    return may_need(other) && chunk_of(other) == chunk_of(unit);
  };
  const int next = unit + direction, after_next = next + direction;
  if (follows(next) && !prefetch_) prefetch_ = start_gather(next);
  if (follows(after_next) && !ahead_ && shards_[0].part.on_disk()) ahead_ = start_read(after_next);
}

void ShardedParams::release_all() {
  for (int unit = 0; unit < static_cast<int>(units_.size()); ++unit) release(unit);
  // Drops units that the backward does not reach, because all is frozen there.
  if (prefetch_) drop_prefetch();
  if (ahead_) drop_ahead();
}

bool ShardedParams::may_need(int unit) const {
  const auto i = static_cast<size_t>(unit);
  return i < units_.size() && !units_[i].shards.empty() && !units_[i].gathered;
}

ShardedParams::Parts ShardedParams::start_read(int unit) {
  const Unit& u = units_[static_cast<size_t>(unit)];
  Parts parts{unit, torch::empty({u.part_numel}, shards_[u.shards.at(0)].param.options()), {}};
  int64_t start = 0;
  for (const size_t i : u.shards) {
    const StateTensor& part = shards_[i].part;
    parts.pending.push_back(part.start_read(0, parts.mine.narrow(0, start, part.numel())));
    start += part.numel();
  }
  in_flight_.add(parts.mine);
  return parts;
}

// Returns a unit's parts. They have been read ahead, unless the direction changed.
torch::Tensor ShardedParams::take_parts(int unit) {
  if (ahead_ && ahead_->unit != unit) drop_ahead();
  Parts parts = ahead_ ? std::move(*std::exchange(ahead_, {})) : start_read(unit);
  for (std::future<void>& read : parts.pending) read.get();
  return parts.mine;
}

void ShardedParams::drop_ahead() { in_flight_.remove(take_parts(ahead_->unit)); }

ShardedParams::Prefetch ShardedParams::start_gather(int unit) {
  const torch::Tensor mine = take_parts(unit);
  Prefetch p{unit, mine, torch::empty({dp_->size(), mine.numel()}, mine.options()), nullptr};
  in_flight_.add(p.all);
  p.pending = dp_->start_all_gather(p.all, p.mine);
  return p;
}

void ShardedParams::drop_prefetch() {
  prefetch_->pending->wait();
  in_flight_.add(-prefetch_->bytes());
  prefetch_.reset();
}

void ShardedParams::gather(int unit) {
  if (!may_need(unit)) return;
  if (prefetch_ && prefetch_->unit != unit) drop_prefetch();  // forward changed to backward
  Prefetch p = prefetch_ ? std::move(*std::exchange(prefetch_, {})) : start_gather(unit);
  p.pending->wait();
  Unit& u = units_[static_cast<size_t>(unit)];
  int64_t start = 0;
  for (const size_t i : u.shards) {
    const Shard& shard = shards_[i];
    const int64_t part = shard.part.numel(), numel = shard.param.numel();
    if (users_[i]++ == 0) {
      allocate_storage(shard.param);
      in_flight_.add(shard.param);
      // Writes through an alias, because autograd must not take this for a change of the tensor.
      const torch::Tensor whole = shard.param.variable_data().view(-1),
                          parts = p.all.narrow(1, start, part);  // [d, part]
      const int64_t full = numel / std::max<int64_t>(1, part),   // ranks
          rest = numel - full * part;
      whole.narrow(0, 0, numel - rest).view({full, part}).copy_(parts.narrow(0, 0, full));
      if (rest > 0) whole.narrow(0, numel - rest, rest).copy_(parts[full].narrow(0, 0, rest));
    }
    start += part;
  }
  in_flight_.add(-p.bytes());
  u.gathered = true;
}

void ShardedParams::release(int unit) {
  const auto at = static_cast<size_t>(unit);
  if (at >= units_.size() || !std::exchange(units_[at].gathered, false)) return;
  for (const size_t i : units_[at].shards) {
    if (--users_[i] > 0) continue;
    in_flight_.remove(shards_[i].param);
    release_storage(shards_[i].param);
  }
}

}  // namespace anymesh
