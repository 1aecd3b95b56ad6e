#include "framework/zero/zero_optimizer.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cmath>

namespace anymesh {
namespace {

// Elements of each partition that are gathered at a time.
constexpr int64_t kBucket = int64_t{1} << 22;

// Moves a leaf's gradient to its place in the flat buffer as soon as a backward has made it.
struct AccumulateHook : torch::autograd::PostAccumulateGradHook {
  explicit AccumulateHook(torch::Tensor place) : flat(std::move(place)) {}
  void operator()(const torch::Tensor& leaf) override {
    torch::Tensor& gradient = leaf.mutable_grad();
    flat.add_(gradient.flatten());
    gradient.reset();
  }
  torch::Tensor flat;
};

torch::Dtype master_dtype(const torch::Tensor& param) {
  return param.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
}

}  // namespace

ZeroOptimizer::ZeroOptimizer(const std::vector<ParamSpec>& params, const ProcessGrid& grid,
                             ZeroOptions options)
    : grid_(grid), options_(options) {
  partitions_ = options.stage == 0 ? grid.world->split(grid.world->rank(), 0) : grid.dp;
  std::vector<ParamSpec> decayed, others;
  for (const ParamSpec& spec : params) (spec.weight_decay ? decayed : others).push_back(spec);
  if (!decayed.empty()) add_group(std::move(decayed), options.weight_decay);
  if (!others.empty()) add_group(std::move(others), 0);
  masters_from_params();
}

void ZeroOptimizer::add_group(std::vector<ParamSpec> params, double weight_decay) {
  std::vector<int64_t> numels;
  for (const ParamSpec& spec : params) numels.push_back(spec.tensor.numel());
  Group group{.weight_decay = weight_decay,
              .params = std::move(params),
              .layout = {numels, partitions_->size()}};

  const int64_t partition = group.layout.partition_numel();
  const torch::TensorOptions fp32 = torch::dtype(master_dtype(group.params[0].tensor));
  group.gradient = torch::zeros({partition * partitions_->size()}, fp32);
  group.exp_avg = torch::zeros({partition}, fp32);
  group.exp_avg_sq = torch::zeros({partition}, fp32);
  const bool own_masters = group.params[0].tensor.dtype() == fp32.dtype();
  if (!own_masters) group.master = torch::zeros({partition}, fp32);

  for (size_t i = 0; i < group.params.size(); ++i) {
    const ParamSpec& spec = group.params[i];
    accumulate_into(spec.tensor,
                    group.gradient.narrow(0, group.layout.param_offset(i), spec.tensor.numel()));
    torch::Tensor& second = group.second_use_gradients.emplace_back();
    if (spec.second_use.defined()) {
      second = torch::zeros({spec.tensor.numel()}, fp32);
      accumulate_into(spec.second_use, second);
    }
  }
  const torch::Tensor gradient =
      group.gradient.narrow(0, partitions_->rank() * partition, partition);
  for (const Fragment& f : group.layout.fragments(partitions_->rank())) {
    const auto mine = [&](const torch::Tensor& flat) {
      return flat.narrow(0, f.partition_start, f.numel);
    };
    const torch::Tensor param =
        group.params[f.param].tensor.detach().view(-1).narrow(0, f.param_start, f.numel);
    group.pieces.push_back({.param = f.param,
                            .param_start = f.param_start,
                            .param_view = param,
                            .master = own_masters ? param : mine(group.master),
                            .gradient = mine(gradient),
                            .exp_avg = mine(group.exp_avg),
                            .exp_avg_sq = mine(group.exp_avg_sq)});
  }
  groups_.push_back(std::move(group));
}

void ZeroOptimizer::accumulate_into(const torch::Tensor& leaf, const torch::Tensor& flat) {
  torch::autograd::impl::set_post_acc_grad_hooks(leaf, std::make_unique<AccumulateHook>(flat));
}

double ZeroOptimizer::reduce_gradients() {
  add_tied_gradients();
  local_square_sum_ = 0;
  for (Group& group : groups_) {
    if (options_.stage == 0) {
      grid_.dp->all_reduce(group.gradient);
    } else {
      const int64_t partition = group.layout.partition_numel();
      grid_.dp->reduce_scatter(group.gradient.narrow(0, grid_.coord.dp * partition, partition),
                               group.gradient);
    }
    for (const Piece& piece : group.pieces) {
      if (counts_in_norm(group.params[piece.param]))
        local_square_sum_ += sum_of_squares(piece.gradient);
    }
  }
  torch::Tensor square_sum = torch::full({1}, local_square_sum_, torch::kDouble);
  (options_.stage == 0 ? grid_.model : grid_.world)->all_reduce(square_sum);
  // Which rank holds which piece decides the order of this sum in double; rounding it once to fp32
  // hides that.
  return static_cast<float>(std::sqrt(square_sum.item<double>()));
}

void ZeroOptimizer::add_tied_gradients() {
  for (Group& group : groups_) {
    for (size_t i = 0; i < group.params.size(); ++i) {
      if (!group.params[i].tied) continue;
      torch::Tensor gradient =
          group.gradient.narrow(0, group.layout.param_offset(i), group.params[i].tensor.numel());
      torch::Tensor& second = group.second_use_gradients[i];
      if (second.defined()) {
        gradient.add_(second);
        second.zero_();
      }
      grid_.embedding->all_reduce(gradient);
    }
  }
}

// Each element of the model once: replicas over tp and the last stage's copy of a tied weight are
// left out.
bool ZeroOptimizer::counts_in_norm(const ParamSpec& spec) const {
  return !spec.duplicate && (spec.split_dim >= 0 || grid_.coord.tp == 0);
}

void ZeroOptimizer::step(double lr, double grad_norm) {
  ++steps;
  const double clip =
      options_.clip_grad > 0 ? std::min(1.0, options_.clip_grad / (grad_norm + 1e-6)) : 1.0;
  for (Group& group : groups_) {
    for (const Piece& piece : group.pieces) {
      adamw_step(piece.master, piece.gradient, piece.exp_avg, piece.exp_avg_sq, options_.adam,
                 steps, lr, group.weight_decay, clip);
    }
    group.gradient.zero_();
  }
  params_from_masters();
}

void ZeroOptimizer::masters_from_params() {
  c10::NoGradGuard no_grad;
  for (Group& group : groups_) {
    for (const Piece& piece : group.pieces) {
      if (group.master.defined()) piece.master.copy_(piece.param_view);
    }
  }
}

void ZeroOptimizer::params_from_masters() {
  c10::NoGradGuard no_grad;
  for (Group& group : groups_) {
    for (const Piece& piece : group.pieces) {
      if (group.master.defined()) piece.param_view.copy_(piece.master);
    }
    if (partitions_->size() > 1) gather_params(group);
  }
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
