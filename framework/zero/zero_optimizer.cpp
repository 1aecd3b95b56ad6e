#include "framework/zero/zero_optimizer.h"

#include <ATen/record_function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "framework/comm/agreement.h"

namespace anymesh {
namespace {

using Use = Streamer::Use;

// Elements of each partition that travel at a time; and of a gradient bucket.
constexpr int64_t kBucket = int64_t{1} << 22;

// Takes a leaf's gradient as soon as a backward has made it.
struct GradientHook : torch::autograd::PostAccumulateGradHook {
  using Take = std::function<void(const torch::Tensor&)>;
  explicit GradientHook(Take t) : take(std::move(t)) {}
  void operator()(const torch::Tensor& leaf) override {
    torch::Tensor& gradient = leaf.mutable_grad();
    take(gradient);
    gradient.reset();
  }
  Take take;
};

void on_gradient(const torch::Tensor& leaf, GradientHook::Take take) {
  torch::autograd::impl::set_post_acc_grad_hooks(leaf,
                                                 std::make_unique<GradientHook>(std::move(take)));
}

torch::Dtype master_dtype(const torch::Tensor& param) {
  return param.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
}

std::vector<int64_t> numels_of(const std::vector<ParamSpec>& params) {
  std::vector<int64_t> numels;
  for (const ParamSpec& spec : params) numels.push_back(spec.tensor.numel());
  return numels;
}

}  // namespace

ZeroOptimizer::ZeroOptimizer(const std::vector<ParamSpec>& params, const ProcessGrid& grid,
                             ZeroOptions options)
    : grid_(grid), options_(std::move(options)) {
  partitions_ = options_.stage == 0 ? grid.world->split(grid.world->rank(), 0) : grid.dp;
  std::vector<ParamSpec> decayed, others;
  for (const ParamSpec& spec : params) {
    if (!spec.frozen()) (spec.weight_decay ? decayed : others).push_back(spec);
  }
  groups_.reserve(2);  // hooks keep references to them
  all_or_none(*grid.world, [&] {
    const OffloadOptions& offload = options_.offload;
    if (offload.optimizer || offload.params) swap_ = std::make_shared<SwapFile>(offload.nvme_path);
    for (const ParamSpec& spec : params) {
      if (spec.frozen()) add_frozen(spec);
    }
    if (!decayed.empty()) add_group(std::move(decayed), options_.weight_decay);
    if (!others.empty()) add_group(std::move(others), 0);
    if (options_.stage == 3) shard_params();
    masters_from_params();
  });
}

void ZeroOptimizer::add_frozen(const ParamSpec& spec) {
  const int64_t numel = spec.tensor.numel();
  if (options_.stage < 3) {
    spec.materialize();
    const torch::Tensor whole = spec.tensor.view(-1);
    frozen_.push_back({spec, 0, whole, whole});
    return;
  }
  const auto [start, count] = zero3_part(numel, partitions_->rank(), partitions_->size());
  const StateTensor part = StateTensor::zeros(zero3_part_numel(numel, partitions_->size()),
                                              spec.tensor.options(),
                                              options_.offload.params ? swap_ : nullptr),
                    weight = part.narrow(0, count);
  weight.fill([&](int64_t at, const torch::Tensor& block) { spec.initialize(start + at, block); });
  frozen_.push_back({spec, start, part, weight});
}

void ZeroOptimizer::add_group(std::vector<ParamSpec> params, double weight_decay) {
  const PartitionLayout layout(numels_of(params), partitions_->size(), options_.stage == 3);
  Group& group = groups_.emplace_back(
      Group{.weight_decay = weight_decay, .params = std::move(params), .layout = layout});
  for (const ParamSpec& spec : group.params) {
    if (options_.stage < 3) spec.materialize();
  }
  add_state(group);
  add_pieces(group);
  if (options_.stage < 2) {
    whole_gradients(groups_.size() - 1);
  } else {
    bucketed_gradients(groups_.size() - 1);
  }
}

void ZeroOptimizer::add_state(Group& group) {
  const int64_t partition = group.layout.partition_numel();
  const torch::Tensor& param = group.params[0].tensor;
  const torch::TensorOptions fp32 = param.options().dtype(master_dtype(param));
  const auto optimizer_swap = options_.offload.optimizer ? swap_ : nullptr,
             params_swap = options_.offload.params ? swap_ : nullptr;
  group.gradient =
      torch::zeros({options_.stage < 2 ? partition * partitions_->size() : partition}, fp32);
  group.exp_avg = StateTensor::zeros(partition, fp32, optimizer_swap);
  group.exp_avg_sq = StateTensor::zeros(partition, fp32, optimizer_swap);
  if (options_.stage == 3)
    group.weights = StateTensor::zeros(partition, param.options(), params_swap);
  if (param.dtype() != fp32.dtype())
    group.master = StateTensor::zeros(partition, fp32, optimizer_swap);
}

void ZeroOptimizer::add_pieces(Group& group) {
  const torch::Tensor gradient = my_gradients(group);
  for (const Fragment& f : group.layout.fragments(partitions_->rank())) {
    const auto mine = [&](const StateTensor& flat) {
      return flat.narrow(f.partition_start, f.numel);
    };
    const ParamSpec& spec = group.params[f.param];
    StateTensor weight;
    if (options_.stage == 3) {
      weight = mine(group.weights);
      weight.fill([&](int64_t at, const torch::Tensor& block) {
        spec.initialize(f.param_start + at, block);
      });
    } else {
      weight = spec.tensor.detach().view(-1).narrow(0, f.param_start, f.numel);
    }
    group.pieces.push_back({.param = f.param,
                            .param_start = f.param_start,
                            .partition_start = f.partition_start,
                            .gradient = gradient.narrow(0, f.partition_start, f.numel),
                            .weight = weight,
                            .master = group.master.defined() ? mine(group.master) : weight,
                            .exp_avg = mine(group.exp_avg),
                            .exp_avg_sq = mine(group.exp_avg_sq)});
  }
}

// Stages 0 and 1: in the whole flat buffer. Of a tied weight's uses, the second is the head's,
// which has a gradient for every row.
void ZeroOptimizer::whole_gradients(size_t g) {
  const Group& group = groups_[g];
  const auto sum = [this](const torch::Tensor& leaf, const torch::Tensor& sums) {
    whole_sums_.emplace_back(sums, grid_.world->size() == 1);
    const size_t at = whole_sums_.size() - 1;
    on_gradient(leaf, [this, at](const torch::Tensor& gradient) { whole_sums_[at].add(gradient); });
    return at;
  };
  for (size_t i = 0; i < group.params.size(); ++i) {
    const ParamSpec& spec = group.params[i];
    const bool twice = spec.second_use.defined();
    sum(twice ? spec.second_use : spec.tensor, gradient_of(group, i));
    if (!twice) continue;
    const torch::Tensor sums = torch::zeros_like(gradient_of(group, i));
    second_uses_.push_back({g, i, sums, sum(spec.tensor, sums), {}});
  }
}

// Stages 2 and 3: in buckets that are reduced while the backward runs.
void ZeroOptimizer::bucketed_gradients(size_t g) {
  Group& group = groups_[g];
  const size_t n = group.params.size();
  for (size_t first = 0, last = 0; first < n; first = last) {
    for (int64_t numel = 0; last < n && (last == first || numel < kBucket); ++last)
      numel += group.layout.numel(last);
    group.buckets.emplace_back(group.layout, first, last, grid_.dp, group.gradient, 0,
                               &bucket_bytes_);
  }
  for (size_t i = 0; i < n; ++i) {
    on_gradient(group.params[i].tensor, [this, g, i](const torch::Tensor& gradient) {
      for (GradientBucket& bucket : groups_[g].buckets) {
        if (bucket.holds(i)) bucket.add(i, gradient);
      }
    });
    if (!group.params[i].second_use.defined()) continue;
    const torch::Tensor first_use = gradient_of(group, i);
    SecondUse use{g, i, torch::zeros_like(first_use), 0, {}};
    use.bucket.emplace(group.layout, i, i + 1, grid_.dp, use.sums,
                       first_use.storage_offset() - group.gradient.storage_offset(),
                       &bucket_bytes_);
    second_uses_.push_back(std::move(use));
    on_gradient(group.params[i].second_use,
                [this, at = second_uses_.size() - 1, i](const torch::Tensor& gradient) {
                  second_uses_[at].bucket->add(i, gradient);
                });
  }
}

void ZeroOptimizer::shard_params() {
  std::vector<ShardedParams::Shard> shards;
  for (const Group& group : groups_) {
    int64_t start = 0;
    for (const ParamSpec& spec : group.params) {
      const int64_t part = zero3_part_numel(spec.tensor.numel(), partitions_->size());
      shards.push_back({spec.tensor.detach(), group.weights.narrow(start, part), spec.units});
      start += part;
    }
  }
  for (const Frozen& f : frozen_) shards.push_back({f.spec.tensor, f.part, f.spec.units});
  sharded_.emplace(std::move(shards), grid_.dp);
}

// This rank's partition of `gradient`.
torch::Tensor ZeroOptimizer::my_gradients(const Group& group) const {
  if (options_.stage >= 2) return group.gradient;
  const int64_t partition = group.layout.partition_numel();
  return group.gradient.narrow(0, partitions_->rank() * partition, partition);
}

// Where `gradient` has a parameter: all of it at stages 0 and 1, this rank's fragment at 2 and 3.
torch::Tensor ZeroOptimizer::gradient_of(const Group& group, size_t param) const {
  if (options_.stage < 2) {
    return group.gradient.narrow(0, group.layout.flat().param_offset(param),
                                 group.layout.numel(param));
  }
  for (const Piece& piece : group.pieces) {
    if (piece.param == param) return piece.gradient;
  }
  return group.gradient.narrow(0, 0, 0);
}

void ZeroOptimizer::before_forward(int unit) {
  if (sharded_) sharded_->before_forward(unit);
}
void ZeroOptimizer::after_forward(int unit) {
  if (sharded_) sharded_->after_forward(unit);
}
void ZeroOptimizer::before_backward(int unit) {
  if (sharded_) sharded_->before_backward(unit);
}
void ZeroOptimizer::after_backward() {
  for (Group& group : groups_) {
    for (GradientBucket& bucket : group.buckets) bucket.flush();
  }
  for (SecondUse& use : second_uses_) {
    if (use.bucket) use.bucket->flush();
  }
  if (sharded_) sharded_->release_all();
}

int64_t ZeroOptimizer::second_use_bytes() const {
  int64_t bytes = 0;
  for (const SecondUse& use : second_uses_) bytes += static_cast<int64_t>(use.sums.nbytes());
  return bytes;
}

int64_t ZeroOptimizer::in_flight_bytes() const { return sharded_ ? sharded_->in_flight().peak : 0; }

double ZeroOptimizer::reduce_gradients() {
  RECORD_USER_SCOPE("gradients");
  if (options_.stage < 2) reduce_whole_gradients();
  add_tied_gradients();
  add_sequence_parts();
  std::vector<torch::Tensor> counted;
  for (const Group& group : groups_) {
    for (const Piece& piece : group.pieces) {
      if (is_first_copy(group.params[piece.param])) counted.push_back(piece.gradient);
    }
  }
  local_square_sum_ = sum_of_squares(counted);
  torch::Tensor square_sum = torch::full({1}, local_square_sum_, torch::kDouble);
  (options_.stage == 0 ? grid_.model : grid_.world)->all_reduce(square_sum);
  // Which rank holds which piece decides the order of this sum in double; rounding it once to fp32
  // hides that.
  return static_cast<float>(std::sqrt(square_sum.item<double>()));
}

// Stages 0 and 1, over dp, once a step. Then, as at the other stages, this rank's partition counts.
void ZeroOptimizer::reduce_whole_gradients() {
  for (WholeSum& sum : whole_sums_) sum.finish();
  for (Group& group : groups_) {
    if (options_.stage == 0) {
      grid_.dp->all_reduce(group.gradient);
    } else {
      grid_.dp->reduce_scatter(my_gradients(group), group.gradient);
    }
  }
}

// One stage that uses a weight twice and two stages that use it once each add the same two sums,
// those over dp: the one order that every ZeRO stage can have.
void ZeroOptimizer::add_tied_gradients() {
  for (SecondUse& use : second_uses_) {
    Group& group = groups_[use.group];
    if (options_.stage == 1) {  // reduces to this rank's fragment, and adds it
      GradientBucket(group.layout, use.param, use.param + 1, grid_.dp, my_gradients(group), 0,
                     &bucket_bytes_)
          .add(use.param, use.sums);
    } else if (options_.stage == 0) {
      grid_.dp->all_reduce(use.sums);
      whole_sums_[use.whole_sum].add_to(gradient_of(group, use.param));
    } else {
      gradient_of(group, use.param).add_(use.sums);
    }
    if (options_.stage >= 2) use.sums.zero_();
  }
  for (Group& group : groups_) {
    for (size_t i = 0; i < group.params.size(); ++i) {
      if (!group.params[i].tied || grid_.topology.pp_size == 1) continue;
      if (options_.stage == 0) {
        grid_.embedding->all_reduce(gradient_of(group, i));
      } else {
        add_tied_partitions(group, i);
      }
    }
  }
}

// The first and the last stage cut the weight at different places, so it is put together, a window
// at a time, added, and cut again. A rank adds zeros where it owns nothing.
void ZeroOptimizer::add_tied_partitions(Group& group, size_t param) {
  const auto piece = std::find_if(group.pieces.begin(), group.pieces.end(),
                                  [&](const Piece& p) { return p.param == param; });
  const bool here = piece != group.pieces.end();
  const torch::Tensor mine = here ? piece->gradient : group.gradient.narrow(0, 0, 0);
  const int64_t start = here ? piece->param_start : 0, held = mine.numel();
  const int64_t numel = group.layout.numel(param);
  for (int64_t begin = 0; begin < numel; begin += kBucket) {
    const int64_t count = std::min(kBucket, numel - begin);
    const int64_t skip = std::clamp<int64_t>(begin - start, 0, held);
    const int64_t n = std::clamp<int64_t>(begin + count - start, 0, held) - skip;
    const torch::Tensor window = torch::zeros({count}, mine.options());
    torch::Tensor owned = mine.narrow(0, skip, n),
                  place = window.narrow(0, std::clamp<int64_t>(start - begin, 0, count), n);
    place.copy_(owned);
    partitions_->all_reduce(window);
    grid_.embedding->all_reduce(window);
    owned.copy_(place);
  }
}

// What each tp rank has of its part of the sequence. Partitions are cut alike on all of them.
void ZeroOptimizer::add_sequence_parts() {
  std::vector<torch::Tensor> parts;
  for (const Group& group : groups_) {
    for (const Piece& piece : group.pieces) {
      if (group.params[piece.param].sequence_sum) parts.push_back(piece.gradient);
    }
  }
  if (parts.empty()) return;
  const torch::Tensor sums = at::cat(parts);
  grid_.tp->all_reduce(sums);
  int64_t start = 0;
  for (torch::Tensor& part : parts) {
    part.copy_(sums.narrow(0, start, part.numel()));
    start += part.numel();
  }
}

bool ZeroOptimizer::is_first_copy(const ParamSpec& spec) const {
  return !spec.duplicate && (spec.split_dim >= 0 || grid_.coord.tp == 0);
}

void ZeroOptimizer::step(double lr, double grad_norm, double loss_scale) {
  RECORD_USER_SCOPE("optimizer");
  ++steps;
  const double norm = grad_norm / loss_scale, max_norm = options_.clip_grad;
  const double clip = max_norm > 0 ? std::min(1.0, max_norm / (norm + 1e-6)) : 1.0;
  c10::NoGradGuard no_grad;
  for (Group& group : groups_) {
    const bool copies = group.master.defined();
    const Group::Uses uses{copies ? Use::Write : Use::Update, Use::Update, Use::Update};
    group.sweep(streamer_, uses, [&](const Group::Window& w) {
      adamw_step(w.master, w.gradient, w.exp_avg, w.exp_avg_sq, options_.adam, steps, lr,
                 group.weight_decay, clip / loss_scale, copies ? w.weight : torch::Tensor());
    });
  }
  clear_gradients();
  gather_params();
}

void ZeroOptimizer::clear_gradients() {
  for (WholeSum& sum : whole_sums_) sum.expire();
  if (options_.stage < 2) return;
  for (Group& group : groups_) group.gradient.zero_();
}

void ZeroOptimizer::masters_from_params() {
  c10::NoGradGuard no_grad;
  for (Group& group : groups_) {
    if (!group.master.defined()) continue;
    group.sweep(streamer_, {Use::Read, Use::Write, Use::None},
                [](const Group::Window& w) { w.master.copy_(w.weight); });
  }
}

void ZeroOptimizer::params_from_masters() {
  c10::NoGradGuard no_grad;
  for (Group& group : groups_) {
    if (!group.master.defined()) continue;
    group.sweep(streamer_, {Use::Write, Use::Read, Use::None},
                [](const Group::Window& w) { w.weight.copy_(w.master); });
  }
  gather_params();
}

void ZeroOptimizer::gather_params() {
  if (partitions_->size() == 1 || options_.stage == 3) return;
  for (Group& group : groups_) gather_params(group);
}

// The parameters are tensors of their own (aligned, as GEMMs like them), so partitions travel
// through a buffer.
void ZeroOptimizer::gather_params(Group& group) {
  const int ranks = partitions_->size();
  const int64_t partition = group.layout.partition_numel();
  std::vector<torch::Tensor> flat;
  for (const ParamSpec& spec : group.params) flat.push_back(spec.tensor.detach().view(-1));
  for (int64_t begin = 0; begin < partition; begin += kBucket) {
    const int64_t count = std::min(kBucket, partition - begin);
    torch::Tensor bucket = torch::empty({ranks, count}, flat[0].options());
    const auto for_each_piece = [&](int rank, auto move) {
      for (const Fragment& f : group.layout.fragments(rank)) {
        const int64_t from = std::max(f.partition_start, begin),
                      to = std::min(f.partition_start + f.numel, begin + count);
        if (from >= to) continue;
        move(flat[f.param].narrow(0, f.param_start + from - f.partition_start, to - from),
             bucket[rank].narrow(0, from - begin, to - from));
      }
    };
    for_each_piece(partitions_->rank(),
                   [](torch::Tensor param, torch::Tensor place) { place.copy_(param); });
    partitions_->all_gather(bucket, bucket[partitions_->rank()]);
    for (int rank = 0; rank < ranks; ++rank) {
      if (rank == partitions_->rank()) continue;
      for_each_piece(rank, [](torch::Tensor param, torch::Tensor place) { param.copy_(place); });
    }
  }
}

}  // namespace anymesh
