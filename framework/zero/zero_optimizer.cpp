#include "framework/zero/zero_optimizer.h"

#include <ATen/record_function.h>

#include <algorithm>

#include "framework/comm/agreement.h"
#include "framework/zero/matrix_updates.h"

namespace anymesh {
namespace {

torch::Dtype master_dtype(const torch::Tensor& param) {
  return param.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
}

}  // namespace

ZeroOptimizer::ZeroOptimizer(const std::vector<ParamSpec>& params, const ProcessGrid& grid,
                             ZeroConfig config)
    : grid_(grid), config_(std::move(config)), optimizer_(make_optimizer(config_.optimizer)) {
  alone_ = grid.world->split(grid.world->rank(), 0);
  if (grid.same_bits.blocks > 0) exact_.emplace(grid.same_bits.rows_of_part, grid.same_bits.parts);
  if (optimizer_->sees_matrices()) holders_ = {grid.holders(false), grid.holders(true)};
  groups_.reserve(params.size());  // hooks keep references to them
  all_or_none(*grid.world, [&] {
    const OffloadConfig& offload = config_.offload;
    if (offload.optimizer_on_disk() || offload.params_on_disk())
      swap_ = std::make_shared<SwapFile>(offload.nvme_path);
    for (const ParamSpec& spec : params) {
      if (spec.frozen()) add_frozen(spec);
      if (spec.buffer) spec.materialize();
    }
    const double decay = config_.weight_decay;
    add_groups(decay, params, [](const auto& spec) { return spec.weight_decay && !spec.experts; });
    add_groups(0, params, [](const auto& spec) { return !spec.weight_decay; });
    add_groups(decay, params, [](const auto& spec) { return spec.weight_decay && spec.experts; });
    if (stage().partitions_parameters()) {
      shard_params();
    } else {
      for (const Group& group : groups_)
        if (const int ranks = group.partitions->size(); ranks > 1)
          gathers_.emplace_back(group, config_.overlap_param_gather, gathered_at_once(ranks));
    }
    sweep_masters(Use::Read, Use::Write,
                  [](const Optimizer::Tensors& t) { t.weight.copy_(t.rounded); });
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

// Adds a group for each optimizer of the trained parameters that `has` is true for. As in
// DeepSpeed, Muon comes before its AdamW, and has matrices in the order of their shapes.
void ZeroOptimizer::add_groups(double weight_decay, const std::vector<ParamSpec>& all,
                               const std::function<bool(const ParamSpec&)>& has) {
  std::vector<std::pair<const Optimizer*, std::vector<ParamSpec>>> found{{optimizer_.get(), {}}};
  for (const ParamSpec& spec : all) {
    if (spec.buffer || spec.frozen() || !has(spec)) continue;
    const Optimizer* optimizer = &optimizer_->of(spec);
    const auto is_its = [&](const auto& entry) { return entry.first == optimizer; };
    auto entry = std::find_if(found.begin(), found.end(), is_its);
    if (entry == found.end()) entry = found.insert(entry, {optimizer, {}});
    entry->second.push_back(spec);
  }
  for (auto& [optimizer, params] : found) {
    if (params.empty()) continue;
    if (optimizer->sees_matrices())
      std::ranges::stable_sort(params, std::ranges::greater(),
                               [](const ParamSpec& spec) { return spec.tensor.sizes().vec(); });
    add_group(weight_decay, *optimizer, std::move(params));
  }
}

void ZeroOptimizer::add_group(double weight_decay, const Optimizer& optimizer,
                              std::vector<ParamSpec> params) {
  std::vector<int64_t> numels;
  for (const ParamSpec& spec : params) {
    numels.push_back(spec.tensor.numel());
    if (!stage().partitions_parameters()) spec.materialize();
  }
  const CommPtr replicas = replicas_of(params[0]), partitions = partitions_of(params[0]);
  Group& group = groups_.emplace_back(
      Group{.optimizer = &optimizer,
            .weight_decay = weight_decay,
            .replicas = replicas,
            .partitions = partitions,
            .params = std::move(params),
            .layout = {numels, partitions->size(), stage().partitions_parameters()}});
  add_state(group);
  add_pieces(group);
  if (optimizer.sees_matrices())
    group.matrices = std::make_shared<MatrixUpdates>(
        group, grid_, stage(), holders_[static_cast<size_t>(group.params[0].experts)]);
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
  group.sums = torch::zeros(
      {stage().partitions_gradients() ? partition : partition * group.partitions->size()},
      exact_ ? fp32.dtype(torch::kLong) : fp32);
  group.gradient = exact_ ? torch::zeros({partition}, fp32) : my_sums(group);
  for (size_t i = 0; i < group.optimizer->states().size(); ++i)
    group.states.push_back(StateTensor::zeros(partition, fp32, optimizer_swap));
  for (const ParamSpec& spec : group.params) {
    auto& whole = group.whole_states.emplace_back();
    for (const auto& state : group.optimizer->whole_states(spec.shape))
      whole.push_back(torch::zeros(state.shape, fp32));
    TORCH_CHECK(whole.empty() || (group.optimizer->sees_matrices() && !spec.experts),
                group.optimizer->name(), ": ", spec.name, " cannot have a state of the whole: ",
                spec.experts ? "ranks have different experts (--num-experts)"
                             : "the optimizer does not see matrices (sees_matrices())");
  }
  if (stage().partitions_parameters())
    group.weights = StateTensor::zeros(partition, param.options(), params_swap);
  if (param.dtype() != fp32.dtype())
    group.master = StateTensor::zeros(partition, fp32, optimizer_swap);
}

void ZeroOptimizer::add_pieces(Group& group) {
  const torch::Tensor sums = my_sums(group);
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
                            .gradient = group.gradient.narrow(0, f.partition_start, f.numel),
                            .sum = sums.narrow(0, f.partition_start, f.numel),
                            .weight = weight,
                            .master = group.master.defined() ? mine(group.master) : weight});
    for (const StateTensor& state : group.states) group.pieces.back().states.push_back(mine(state));
  }
  if (swap_) return;
  for (const Piece& p : group.pieces) {
    Optimizer::Tensors& own = group.in_memory.emplace_back(
        Optimizer::Tensors{.weight = p.master.tensor(), .gradient = p.gradient});
    for (const StateTensor& state : p.states) own.states.push_back(state.tensor());
    if (group.master.defined()) own.rounded = p.weight.tensor();
  }
}

void ZeroOptimizer::shard_params() {
  std::vector<int> chunks;  // of the stage's units
  const auto note = [&](const ParamSpec& spec) {
    for (const int unit : spec.units) {
      chunks.resize(std::max(chunks.size(), static_cast<size_t>(unit) + 1));
      chunks[static_cast<size_t>(unit)] = spec.chunk;
    }
  };
  for (const Group& group : groups_) std::ranges::for_each(group.params, note);
  for (const Frozen& frozen : frozen_) note(frozen.spec);
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
    sharded_.emplace_back(std::move(shards), chunks, replicas);
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
    const Optimizer& optimizer = *group.optimizer;
    Optimizer::Step step{steps, lr * optimizer.lr_scale(), group.weight_decay, clip / loss_scale};
    if (group.matrices) {
      for (const Optimizer::Tensors& piece : group.in_memory) optimizer.prepare(piece, step);
      if (swap_)
        sweep(group, Use::None, Use::None, Use::Update,
              [&](const Optimizer::Tensors& piece) { optimizer.prepare(piece, step); });
      group.matrices->update(step);
      step.gradient_scale = 1;
    }
    if (!swap_) {
      optimizer.step(group.in_memory, step);
      continue;
    }
    sweep(group, group.master.defined() ? Use::Write : Use::Update, Use::Update,
          group.matrices ? Use::None : Use::Update,
          [&](const Optimizer::Tensors& piece) { optimizer.step({piece}, step); });
  }
  clear_gradients();
  gather_params();
}

void ZeroOptimizer::params_from_masters() {
  sweep_masters(Use::Write, Use::Read,
                [](const Optimizer::Tensors& t) { t.rounded.copy_(t.weight); });
  gather_params();
  finish_gather();
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
void ZeroOptimizer::sweep(const Group& group, Use weights, Use masters, Use states,
                          const Work& work) {
  std::vector<Streamer::Stream> streams{{group.weights, weights}, {group.master, masters}};
  for (const StateTensor& state : group.states) streams.push_back({state, states});
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
      Optimizer::Tensors window{.weight = weight, .gradient = own(piece.gradient)};
      if (group.master.defined()) window.weight = part(1), window.rounded = weight;
      for (size_t i = 2; i < streams.size(); ++i) window.states.push_back(part(i));
      work(window);
    }
  });
}

void ZeroOptimizer::gather_params() {
  for (ParamGather& gather : gathers_) gather.start();
}

void ZeroOptimizer::finish_gather() {
  for (ParamGather& gather : gathers_) gather.finish();
}

void ZeroOptimizer::before_forward(int unit) {
  for (ParamGather& gather : gathers_) gather.before(unit);
  for (ShardedParams& params : sharded_) params.before_forward(unit);
}

}  // namespace anymesh
