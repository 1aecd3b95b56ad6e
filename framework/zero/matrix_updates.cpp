#include "framework/zero/matrix_updates.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <numeric>
#include <span>

namespace anymesh {

MatrixUpdates::MatrixUpdates(const ParamGroup& group, const ProcessGrid& grid, ZeroStage stage,
                             CommPtr ranks)
    : group_(group),
      tp_size_(grid.topology.tp_size),
      partitioned_(stage.partitions_optimizer()),
      ranks_(std::move(ranks)),
      order_(group.params.size()),
      mine_(group.params.size()) {
  const Topology& mesh = grid.topology;
  const bool experts = group.params[0].experts;
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    const Coord at = mesh.coord_of(rank);
    if (at.pp != grid.coord.pp || (experts && mesh.ep_rank_of(at) != mesh.ep_rank_of(grid.coord)))
      continue;
    Holder& holder =
        holders_.emplace_back(Holder{.tp = experts && mesh.whole_experts ? 0 : at.tp,
                                     .partition = experts ? mesh.edp_rank_of(at) : at.dp,
                                     .fragments = {}});
    holder.fragments.resize(group.params.size());
    for (const Fragment& f : group.layout.fragments(partitioned_ ? holder.partition : 0))
      holder.fragments[f.param] = f;
  }
  std::iota(order_.begin(), order_.end(), size_t{0});
  std::ranges::stable_sort(order_, std::ranges::greater(), [&](size_t param) {
    const auto& shape = group.params[param].shape;
    const int64_t side = shape.size() < 2 ? 1 : std::min(shape.end()[-1], shape.end()[-2]);
    return group.params[param].tensor.numel() * side;
  });
  for (const ParamGroup::Piece& piece : group.pieces) mine_[piece.param] = piece.gradient;
}

void MatrixUpdates::update(const Optimizer::Step& step) const {
  const size_t size = holders_.size(), me = static_cast<size_t>(ranks_->rank());
  for (size_t first = 0; first < order_.size(); first += size) {
    const std::span round = std::span(order_).subspan(first, std::min(size, order_.size() - first));
    const bool owns = me < round.size();
    Counts here(size), there(size);  // elements that come to me, and that go from me
    std::vector<torch::Tensor> sent;
    for (size_t owner = 0; owner < round.size(); ++owner) {
      const torch::Tensor& gradient = mine_[round[owner]];
      if (!gradient.defined() || !sends(holders_[me], holders_[owner], round[owner])) continue;
      sent.push_back(gradient);
      there[owner] = gradient.numel();
    }
    for (size_t rank = 0; owns && rank < size; ++rank)
      if (sends(holders_[rank], holders_[me], round[me]))
        here[rank] = holders_[rank].fragments[round[me]].numel;
    const torch::Tensor received = exchanged(sent, here, there);

    sent.clear();
    std::ranges::fill(there, 0);
    if (owns) {
      sent = cut(round[me], updated(round[me], joined(round[me], received, here), step));
      std::ranges::transform(sent, there.begin(), [](const torch::Tensor& t) { return t.numel(); });
    }
    std::ranges::fill(here, 0);
    for (size_t owner = 0; owner < round.size(); ++owner)
      here[owner] = holders_[me].fragments[round[owner]].numel;
    const torch::Tensor results = exchanged(sent, here, there);
    int64_t at = 0;
    for (size_t owner = 0; owner < round.size(); at += here[owner++])
      if (const torch::Tensor& gradient = mine_[round[owner]]; gradient.defined())
        gradient.copy_(results.narrow(0, at, here[owner]));
    share_states(round);
  }
}

torch::Tensor MatrixUpdates::updated(size_t param, const torch::Tensor& whole,
                                     const Optimizer::Step& step) const {
  const ParamSpec& spec = group_.params[param];
  const auto& states = group_.whole_states[param];
  if (!spec.vocabulary) return group_.optimizer->of_matrix(whole, states, step);
  const torch::Tensor result = at::zeros_like(whole);
  const auto real = [&](const torch::Tensor& t) { return t.narrow(0, 0, spec.shape[0]); };
  real(result).copy_(group_.optimizer->of_matrix(real(whole), states, step));
  return result;
}

void MatrixUpdates::share_states(std::span<const size_t> round) const {
  const size_t size = holders_.size(), me = static_cast<size_t>(ranks_->rank());
  const auto flat = [&](size_t owner) {
    std::vector<torch::Tensor> parts;
    for (const torch::Tensor& state : group_.whole_states[round[owner]])
      parts.push_back(state.view(-1));
    return parts;
  };
  Counts here(size), there(size);
  std::vector<torch::Tensor> sent;
  for (size_t owner = 0; owner < round.size(); ++owner)
    for (const torch::Tensor& state : flat(owner)) here[owner] += state.numel();
  if (std::ranges::all_of(here, [](int64_t count) { return count == 0; })) return;
  if (me < round.size()) {
    std::ranges::fill(there, here[me]);
    for (size_t rank = 0; rank < size; ++rank)
      std::ranges::copy(flat(me), std::back_inserter(sent));
  }
  const torch::Tensor received = exchanged(sent, here, there);
  int64_t at = 0;
  for (size_t owner = 0; owner < round.size(); ++owner)
    for (const torch::Tensor& state : flat(owner)) {
      state.copy_(received.narrow(0, at, state.numel()));
      at += state.numel();
    }
}

bool MatrixUpdates::sends(const Holder& sender, const Holder& owner, size_t param) const {
  return (group_.params[param].split_dim >= 0 || sender.tp == owner.tp) &&
         (partitioned_ || sender.partition == owner.partition);
}

torch::Tensor MatrixUpdates::exchanged(const std::vector<torch::Tensor>& sent,
                                       const Counts& receive_counts,
                                       const Counts& send_counts) const {
  const torch::TensorOptions options = group_.gradient.options();
  torch::Tensor out = at::empty(
      {std::accumulate(receive_counts.begin(), receive_counts.end(), int64_t{0})}, options);
  ranks_->all_to_all(out, sent.empty() ? at::empty({0}, options) : at::cat(sent), receive_counts,
                     send_counts);
  return out;
}

torch::Tensor MatrixUpdates::joined(size_t param, const torch::Tensor& received,
                                    const Counts& counts) const {
  const ParamSpec& spec = group_.params[param];
  std::vector<int64_t> shape = spec.tensor.sizes().vec();
  if (spec.split_dim >= 0) shape[static_cast<size_t>(spec.split_dim)] *= tp_size_;
  const torch::Tensor whole = at::empty(shape, received.options()),
                      flat = at::empty({spec.tensor.numel()}, received.options());  // a tp slice
  for (int tp = 0; tp < tp_size_; ++tp) {
    const Holder* sender = nullptr;
    int64_t at = 0;
    for (size_t rank = 0; rank < holders_.size(); at += counts[rank++]) {
      if (holders_[rank].tp != tp || counts[rank] == 0) continue;
      sender = &holders_[rank];
      flat.narrow(0, sender->fragments[param].param_start, counts[rank])
          .copy_(received.narrow(0, at, counts[rank]));
    }
    if (!sender) continue;
    const torch::Tensor part = slice(param, whole, *sender);
    part.copy_(flat.view(part.sizes()));
  }
  return whole;
}

std::vector<torch::Tensor> MatrixUpdates::cut(size_t param, const torch::Tensor& whole) const {
  std::vector<torch::Tensor> slices(static_cast<size_t>(tp_size_)), parts;  // flat
  for (const Holder& holder : holders_) {
    torch::Tensor& flat = slices[static_cast<size_t>(holder.tp)];
    if (!flat.defined()) flat = slice(param, whole, holder).contiguous().view(-1);
    const Fragment& f = holder.fragments[param];
    parts.push_back(flat.narrow(0, f.param_start, f.numel));
  }
  return parts;
}

torch::Tensor MatrixUpdates::slice(size_t param, const torch::Tensor& whole,
                                   const Holder& holder) const {
  const ParamSpec& spec = group_.params[param];
  if (spec.split_dim < 0) return whole;
  return whole.unflatten(spec.split_dim, {spec.sub_params, tp_size_, -1})
      .select(spec.split_dim + 1, holder.tp);
}

}  // namespace anymesh
