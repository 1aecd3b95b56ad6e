#include "framework/zero/zero_optimizer.h"

#include <ATen/record_function.h>

#include <algorithm>

#include "framework/comm/agreement.h"

namespace anymesh {
namespace {

torch::Dtype master_dtype(const torch::Tensor& param) {
  return param.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
}

}  // namespace

ZeroOptimizer::ZeroOptimizer(const std::vector<ParamSpec>& params, const ProcessGrid& grid,
                             ZeroConfig config)
    : grid_(grid), config_(std::move(config)) {
  alone_ = grid.world->split(grid.world->rank(), 0);
  groups_.reserve(3);  // hooks keep references to them
  all_or_none(*grid.world, [&] {
    const OffloadConfig& offload = config_.offload;
    if (offload.optimizer_on_disk() || offload.params_on_disk())
      swap_ = std::make_shared<SwapFile>(offload.nvme_path);
    for (const ParamSpec& spec : params) {
      if (spec.frozen()) add_frozen(spec);
      if (spec.buffer) spec.materialize();
    }
    const double decay = config_.weight_decay;
    add_group(decay, params, [](const auto& spec) { return spec.weight_decay && !spec.experts; });
    add_group(0, params, [](const auto& spec) { return !spec.weight_decay; });
    add_group(decay, params, [](const auto& spec) { return spec.weight_decay && spec.experts; });
    if (stage().partitions_parameters()) shard_params();
    sweep_masters(Use::Read, Use::Write, [](const Window& w) { w.master.copy_(w.weight); });
  });
}

void ZeroOptimizer::add_frozen(const ParamSpec& spec) {
  const int64_t numel = spec.tensor.numel();
  if (!stage().partitions_parameters()) {
    spec.materialize();
    const torch::Tensor whole = spec.tensor.view(-1);
    frozen_.push_back({spec, 0, whole, whole});
    return;
  }
  const Communicator& partitions = *partitions_of(spec);
  const auto [start, count] = zero3_part(numel, partitions.rank(), partitions.size());
  const StateTensor part = StateTensor::zeros(zero3_part_numel(numel, partitions.size()),
                                              spec.tensor.options(),
                                              config_.offload.params_on_disk() ? swap_ : nullptr),
                    weight = part.narrow(0, count);
  weight.fill([&, from = start](int64_t at, const torch::Tensor& block) {
    spec.initialize(from + at, block);
  });
  frozen_.push_back({spec, start, part, weight});
}

// Adds a group of the trained parameters that `has` is true for, if there are any.
void ZeroOptimizer::add_group(double weight_decay, const std::vector<ParamSpec>& all,
                              const std::function<bool(const ParamSpec&)>& has) {
  std::vector<ParamSpec> params;
  std::vector<int64_t> numels;
  for (const ParamSpec& spec : all) {
    if (spec.buffer || spec.frozen() || !has(spec)) continue;
    params.push_back(spec);
    numels.push_back(spec.tensor.numel());
    if (!stage().partitions_parameters()) spec.materialize();
  }
  if (params.empty()) return;
  const CommPtr replicas = replicas_of(params[0]), partitions = partitions_of(params[0]);
  Group& group = groups_.emplace_back(
      Group{.weight_decay = weight_decay,
            .replicas = replicas,
            .partitions = partitions,
            .params = std::move(params),
            .layout = {numels, partitions->size(), stage().partitions_parameters()}});
  add_state(group);
  add_pieces(group);
  if (stage().partitions_gradients()) {
    bucketed_gradients(group);
  } else {
    whole_gradients(group);
  }
}

void ZeroOptimizer::add_state(Group& group) {
  const int64_t partition = group.layout.partition_numel();
  const torch::Tensor& param = group.params[0].tensor;
  const torch::TensorOptions fp32 = param.options().dtype(master_dtype(param));
  const auto optimizer_swap = config_.offload.optimizer_on_disk() ? swap_ : nullptr,
             params_swap = config_.offload.params_on_disk() ? swap_ : nullptr;
  group.gradient = torch::zeros(
      {stage().partitions_gradients() ? partition : partition * group.partitions->size()}, fp32);
  group.exp_avg = StateTensor::zeros(partition, fp32, optimizer_swap);
  group.exp_avg_sq = StateTensor::zeros(partition, fp32, optimizer_swap);
  if (stage().partitions_parameters())
    group.weights = StateTensor::zeros(partition, param.options(), params_swap);
  if (param.dtype() != fp32.dtype())
    group.master = StateTensor::zeros(partition, fp32, optimizer_swap);
}

void ZeroOptimizer::add_pieces(Group& group) {
  const torch::Tensor gradient = my_gradients(group);
  for (const Fragment& f : group.layout.fragments(group.partitions->rank())) {
    const auto mine = [&](const StateTensor& flat) {
      return flat.narrow(f.partition_start, f.numel);
    };
    const ParamSpec& spec = group.params[f.param];
    StateTensor weight;
    if (stage().partitions_parameters()) {
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
  if (swap_) return;
  for (const Piece& p : group.pieces)
    group.in_memory.push_back({p.master.tensor(), p.gradient, p.exp_avg.tensor(),
                               p.exp_avg_sq.tensor(),
                               group.master.defined() ? p.weight.tensor() : torch::Tensor()});
}

void ZeroOptimizer::shard_params() {
  for (const CommPtr& replicas : {grid_.dp, grid_.edp}) {
    std::vector<ShardedParams::Shard> shards;
    for (const Group& group : groups_) {
      if (group.replicas != replicas) continue;
      int64_t start = 0;
      for (const ParamSpec& spec : group.params) {
        const int64_t part = zero3_part_numel(spec.tensor.numel(), replicas->size());
        shards.push_back({spec.tensor.detach(), group.weights.narrow(start, part), spec.units});
        start += part;
      }
    }
    for (const Frozen& frozen : frozen_) {
      if (replicas_of(frozen.spec) == replicas)
        shards.push_back({frozen.spec.tensor, frozen.part, frozen.spec.units});
    }
    sharded_.emplace_back(std::move(shards), replicas);
    if (grid_.edp == grid_.dp) break;
  }
}

int64_t ZeroOptimizer::in_flight_bytes() const {
  int64_t peak = 0;
  for (const ShardedParams& params : sharded_) peak += params.in_flight().peak;
  return peak;
}

int64_t ZeroOptimizer::second_use_bytes() const {
  int64_t bytes = 0;
  for (const SecondUse& use : second_uses_) bytes += static_cast<int64_t>(use.sums.nbytes());
  return bytes;
}

bool ZeroOptimizer::counts_here(const ParamSpec& spec, bool partitioned) const {
  return !spec.duplicate && spec.counts_at(grid_.topology, grid_.coord, partitioned);
}

void ZeroOptimizer::step(double lr, double grad_norm, double loss_scale) {
  RECORD_USER_SCOPE("optimizer");
  ++steps;
  const double norm = grad_norm / loss_scale, max_norm = config_.clip_grad;
  const double clip = max_norm > 0 ? std::min(1.0, max_norm / (norm + 1e-6)) : 1.0;
  c10::NoGradGuard no_grad;
  for (const Group& group : groups_) {
    const auto update = [&](const std::vector<AdamwTensors>& pieces) {
      adamw_step(pieces, config_.adam, steps, lr, group.weight_decay, clip / loss_scale);
    };
    if (!swap_) {
      update(group.in_memory);
      continue;
    }
    const bool copies = group.master.defined();
    sweep(group, copies ? Use::Write : Use::Update, Use::Update, Use::Update, [&](const Window& w) {
      update(
          {{w.master, w.gradient, w.exp_avg, w.exp_avg_sq, copies ? w.weight : torch::Tensor()}});
    });
  }
  clear_gradients();
  gather_params();
}

void ZeroOptimizer::params_from_masters() {
  sweep_masters(Use::Write, Use::Read, [](const Window& w) { w.weight.copy_(w.master); });
  gather_params();
}

// Sweeps the groups whose weights are not their own masters.
void ZeroOptimizer::sweep_masters(Use weights, Use masters, const Work& work) {
  c10::NoGradGuard no_grad;
  for (const Group& group : groups_) {
    if (group.master.defined()) sweep(group, weights, masters, Use::None, work);
  }
}

// Calls work(window) for all elements of all pieces, in order. Windows of tensors that always lie
// in memory are cut from the piece, others from the block.
void ZeroOptimizer::sweep(const Group& group, Use weights, Use masters, Use moments,
                          const Work& work) {
  const std::vector<Streamer::Stream> streams{{group.weights, weights},
                                              {group.master, masters},
                                              {group.exp_avg, moments},
                                              {group.exp_avg_sq, moments}};
  streamer_.sweep(streams, group.layout.partition_numel(), [&](const Streamer::Block& block) {
    for (const Piece& piece : group.pieces) {
      const int64_t from = std::max(piece.partition_start, block.begin),
                    to = std::min(piece.partition_start + piece.numel(), block.end);
      if (from >= to) continue;
      const auto own = [&](const torch::Tensor& t) {
        return t.narrow(0, from - piece.partition_start, to - from);
      };
      const auto part = [&](size_t stream) {
        const torch::Tensor& t = block.tensors[stream];
        return t.defined() ? t.narrow(0, from - block.begin, to - from) : t;
      };
      const torch::Tensor weight = group.weights.defined() ? part(0) : own(piece.weight.tensor());
      work({.gradient = own(piece.gradient),
            .weight = weight,
            .master = group.master.defined() ? part(1) : weight,
            .exp_avg = part(2),
            .exp_avg_sq = part(3)});
    }
  });
}

void ZeroOptimizer::gather_params() {
  if (stage().partitions_parameters()) return;
  for (const Group& group : groups_) {
    if (group.partitions->size() > 1) gather_params(group);
  }
}

// The parameters are separate tensors, aligned for GEMMs, so partitions travel through a buffer.
void ZeroOptimizer::gather_params(const Group& group) {
  const int ranks = group.partitions->size(), mine = group.partitions->rank();
  const int64_t partition = group.layout.partition_numel();
  std::vector<torch::Tensor> flat;
  for (const ParamSpec& spec : group.params) flat.push_back(spec.tensor.detach().view(-1));
  for (int64_t begin = 0; begin < partition; begin += kBucket) {
    const int64_t count = std::min(kBucket, partition - begin);
    const torch::Tensor bucket = torch::empty({ranks, count}, flat[0].options());
    const auto move = [&](int rank) {  // copies this rank's to the bucket, others' from it
      for (const Fragment& f : group.layout.fragments(rank)) {
        const int64_t from = std::max(f.partition_start, begin),
                      to = std::min(f.partition_start + f.numel, begin + count);
        if (from >= to) continue;
        const int64_t at = f.param_start + from - f.partition_start;
        const torch::Tensor param = flat[f.param].narrow(0, at, to - from),
                            place = bucket[rank].narrow(0, from - begin, to - from);
        rank == mine ? place.copy_(param) : param.copy_(place);
      }
    };
    move(mine);
    group.partitions->all_gather(bucket, bucket[mine]);
    for (int rank = 0; rank < ranks; ++rank) {
      if (rank != mine) move(rank);
    }
  }
}

}  // namespace anymesh
