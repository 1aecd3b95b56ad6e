// Takes gradients from the backward as it makes them, sums and reduces them.
#include <ATen/record_function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "framework/kernels/adamw_sweeps.h"
#include "framework/kernels/gradient_sink.h"
#include "framework/zero/zero_optimizer.h"

namespace anymesh {
namespace {

using Take = std::function<void(const torch::Tensor&)>;

// Takes a leaf's gradient as soon as a backward has made it, or later.
struct GradientHook : GradientSink {
  GradientHook(LaterGradients& l, Take t, GradientSum* s, ExactSum* e)
      : later(l), take(std::move(t)), sum(s), exact(e) {}
  void operator()(const torch::Tensor& leaf) override {
    // It is undefined if the sink took it already, or will make it later.
    const torch::Tensor gradient = std::exchange(leaf.mutable_grad(), {});
    if (later.is_open())
      later.add([this, gradient] { end_with(gradient); });
    else
      end_with(gradient);
  }
  void end_with(const torch::Tensor& gradient) const {
    if (gradient.defined()) take(gradient);
    if (ended) ended();
  }
  void add(const torch::Tensor& gradient) override { take(gradient); }
  bool add_product(const torch::Tensor& dy, const torch::Tensor& x) override {
    if (sum || !exact) return sum && sum->add_product(dy, x);
    const torch::Tensor units = torch::empty({dy.size(-1), x.size(-1)}, torch::kLong);
    exact->add_product(dy, x, units, /*replaces=*/true);
    take(units);
    return true;
  }
  bool add_groups(const torch::Tensor& dy, const torch::Tensor& x,
                  const std::vector<int64_t>& counts) override {
    return sum && sum->add_groups(dy, x, counts);
  }
  bool add_parts(const torch::Tensor& parts) override {
    if (!exact) return sum && sum->add_parts(parts);
    take(exact->sum_of_parts(parts));
    return true;
  }
  bool puts_off() const override { return later.is_open(); }
  void put_off(std::function<void()> work) override { later.add(std::move(work)); }
  int64_t rows_of_part() const override { return exact ? exact->rows_of_part() : 0; }

  LaterGradients& later;
  Take take;
  GradientSum* sum;
  ExactSum* exact;
  std::function<void()> ended;  // the gradient is in its sum
};

// Makes `hook` the leaf's.
void hook_on(const torch::Tensor& leaf, std::unique_ptr<GradientHook> hook) {
  torch::autograd::impl::set_post_acc_grad_hooks(leaf, std::move(hook));
}

}  // namespace

// Stages 0 and 1: sums gradients in the whole flat buffer. The second use of a tied weight is the
// head's, which has a gradient for every row.
void ZeroOptimizer::whole_gradients(const Group& group) {
  ExactSum* const exact = exact_ ? &*exact_ : nullptr;
  const auto sum = [&](const torch::Tensor& leaf, const torch::Tensor& sums,
                       SumReductions::Part* part) {
    GradientSum& of_leaf = whole_sums_.emplace_back(sums, grid_.world->size() == 1, exact);
    auto hook = std::make_unique<GradientHook>(
        later_, [&of_leaf](const torch::Tensor& gradient) { of_leaf.add(gradient); }, &of_leaf,
        exact);
    if (part)
      hook->ended = [this, &of_leaf, part] {
        if (!is_last_backward_) return;
        of_leaf.finish();
        sum_reductions_.completed(*part);
      };
    hook_on(leaf, std::move(hook));
    return &of_leaf;
  };
  const std::vector<SumReductions::Part*> parts =
      sum_reductions_.add(group, stage().partitions_optimizer(), sent_dtype(group));
  for (size_t i = 0; i < group.params.size(); ++i) {
    const ParamSpec& spec = group.params[i];
    const bool twice = spec.second_use.defined();
    sum(twice ? spec.second_use : spec.tensor, sum_of(group, i), parts[i]);
    if (!twice) continue;
    const torch::Tensor sums = torch::zeros_like(sum_of(group, i));
    second_uses_.push_back({group, i, sums, sum(spec.tensor, sums, nullptr), {}});
  }
}

// Stages 2 and 3: sums gradients in buckets that are reduced while the backward runs.
void ZeroOptimizer::bucketed_gradients(Group& group) {
  ExactSum* const exact = exact_ ? &*exact_ : nullptr;
  const auto fill = [&](GradientBucket& bucket, size_t param, const torch::Tensor& leaf) {
    const auto take = [&bucket, param, exact](const torch::Tensor& gradient) {
      const bool rounds = exact && gradient.is_floating_point();
      bucket.add(param, rounds ? exact->units(gradient) : gradient);
    };
    hook_on(leaf, std::make_unique<GradientHook>(later_, take, nullptr, exact));
  };
  const size_t n = group.params.size();
  for (size_t first = 0, last = 0; first < n; first = last) {
    const int chunk = group.params[first].chunk;  // has a backward of its own
    for (int64_t numel = 0; last < n && group.params[last].chunk == chunk && numel < kBucket;
         ++last)
      numel += group.layout.numel(last);
    GradientBucket& bucket = group.buckets.emplace_back(
        group.layout, first, last, group.replicas, group.sums, 0, sent_dtype(group), &reductions_);
    for (size_t i = first; i < last; ++i) fill(bucket, i, group.params[i].tensor);
  }
  for (size_t i = 0; i < n; ++i) {
    if (!group.params[i].second_use.defined()) continue;
    const torch::Tensor first_use = sum_of(group, i);
    SecondUse& use =
        second_uses_.emplace_back(SecondUse{group, i, torch::zeros_like(first_use), nullptr, {}});
    fill(use.bucket.emplace(group.layout, i, i + 1, group.replicas, use.sums,
                            first_use.storage_offset() - group.sums.storage_offset(),
                            sent_dtype(group), &reductions_),
         i, group.params[i].second_use);
  }
}

// This rank's partition of `gradient`.
torch::Tensor ZeroOptimizer::my_sums(const Group& group) const {
  if (stage().partitions_gradients()) return group.sums;
  const int64_t partition = group.layout.partition_numel();
  return group.sums.narrow(0, group.partitions->rank() * partition, partition);
}

// A parameter's elements of `gradient`: all of them at stages 0 and 1, this rank's fragment at 2
// and 3.
torch::Tensor ZeroOptimizer::sum_of(const Group& group, size_t param) const {
  if (!stage().partitions_gradients()) {
    return group.sums.narrow(0, group.layout.flat().param_offset(param), group.layout.numel(param));
  }
  for (const Piece& piece : group.pieces) {
    if (piece.param == param) return piece.sum;
  }
  return group.sums.narrow(0, 0, 0);
}

void ZeroOptimizer::begin_step(double loss_scale, int64_t samples) {
  if (exact_) exact_->begin(loss_scale, samples);
  later_.clear();
  sum_reductions_.begin();
}

void ZeroOptimizer::begin_backward(bool splits, bool is_last) {
  is_last_backward_ = is_last;
  if (splits) later_.begin();
}

void ZeroOptimizer::end_backward() {
  if (!later_.is_open()) flush_buckets();
  later_.end();
  for (ShardedParams& params : sharded_) params.release_all();
}

void ZeroOptimizer::make_gradients(bool is_last) {
  const c10::NoGradGuard no_grad;
  is_last_backward_ = is_last;
  later_.make_oldest();
  flush_buckets();
}

// A micro-batch may not have used all parameters.
void ZeroOptimizer::flush_buckets() {
  for (Group& group : groups_) {
    for (GradientBucket& bucket : group.buckets) bucket.flush();
  }
  for (SecondUse& use : second_uses_) {
    if (use.bucket) use.bucket->flush();
  }
}

double ZeroOptimizer::reduce_gradients() {
  RECORD_USER_SCOPE("gradients");
  reductions_.finish_all();
  if (!stage().partitions_gradients()) reduce_whole_gradients();
  add_tied_gradients();
  add_tp_parts();
  std::vector<torch::Tensor> counted;
  for (const Group& group : groups_) {
    for (const Piece& piece : group.pieces) {
      if (exact_) exact_->finish(piece.sum, piece.gradient);
      if (counts_here(group.params[piece.param], stage().partitions_optimizer()))
        counted.push_back(piece.gradient);
    }
  }
  const torch::Tensor square_sum = exact_
                                       ? exact_->square_sum(counted)
                                       : torch::full({1}, sum_of_squares(counted), torch::kDouble);
  local_square_sum_ = square_sum.sum().item<double>();
  grid_.world->all_reduce(square_sum);
  // Without --same-bits, the order of this sum in double depends on which rank holds which piece.
  // Rounding it once to fp32 hides that.
  return static_cast<float>(std::sqrt(square_sum.sum().item<double>()));
}

// A transport that rounds at each addition gets the sums' dtype, unless bf16 is asked for.
std::optional<torch::Dtype> ZeroOptimizer::sent_dtype(const Group& group) const {
  if (exact_) return {};
  if (config_.grad_reduce_in_bf16) return torch::kBFloat16;
  if (!group.replicas->sums_in_fp32()) return group.sums.scalar_type();
  return {};
}

// Stages 0 and 1: reduces over dp, once a step. After that this rank's partition counts, as at the
// other stages.
void ZeroOptimizer::reduce_whole_gradients() {
  for (GradientSum& sum : whole_sums_) sum.finish();
  sum_reductions_.finish();
}

// One stage that uses a weight twice, and two stages that use it once each, add the same two sums
// over dp. This is the one order that every ZeRO stage can have.
void ZeroOptimizer::add_tied_gradients() {
  for (SecondUse& use : second_uses_) {
    const Group& group = use.group;
    if (stage().partitions_gradients()) {
      sum_of(group, use.param).add_(use.sums);
      use.sums.zero_();
    } else if (stage().partitions_optimizer()) {  // reduces to this rank's fragment, and adds it
      GradientBucket bucket(group.layout, use.param, use.param + 1, group.replicas, my_sums(group),
                            0, sent_dtype(group), &reductions_);
      bucket.add(use.param, use.sums);
      reductions_.finish_all();
    } else {
      group.replicas->all_reduce(use.sums);
      use.whole_sum->add_to(sum_of(group, use.param));
    }
  }
  for (Group& group : groups_) {
    for (size_t i = 0; i < group.params.size(); ++i) {
      if (!group.params[i].tied || grid_.topology.pp_size == 1) continue;
      if (stage().partitions_optimizer()) {
        add_tied_partitions(group, i);
      } else {
        grid_.embedding->all_reduce(sum_of(group, i));
      }
    }
  }
}

// The first and the last stage cut the weight at different places. So it is put together, a window
// at a time, added, and cut again. A rank adds zeros where it owns nothing.
void ZeroOptimizer::add_tied_partitions(const Group& group, size_t param) {
  const auto piece = std::find_if(group.pieces.begin(), group.pieces.end(),
                                  [&](const Piece& p) { return p.param == param; });
  const bool here = piece != group.pieces.end();
  const torch::Tensor mine = here ? piece->sum : group.sums.narrow(0, 0, 0);
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
    group.partitions->all_reduce(window);
    grid_.embedding->all_reduce(window);
    owned.copy_(place);
  }
}

// Adds the gradients that the tp ranks have from their parts of the sequence. Partitions are cut
// alike on all of them.
void ZeroOptimizer::add_tp_parts() {
  std::vector<torch::Tensor> parts;
  for (const Group& group : groups_) {
    for (const Piece& piece : group.pieces) {
      if (group.params[piece.param].tp_sum) parts.push_back(piece.sum);
    }
  }
  if (parts.empty()) return;
  const torch::Tensor sums = at::cat(parts);
  grid_.tp->all_reduce(sums);
  int64_t start = 0;
  for (const torch::Tensor& part : parts) {
    part.copy_(sums.narrow(0, start, part.numel()));
    start += part.numel();
  }
}

void ZeroOptimizer::clear_gradients() {
  for (GradientSum& sum : whole_sums_) sum.expire();
  if (!stage().partitions_gradients()) return;
  for (Group& group : groups_) group.sums.zero_();
}

}  // namespace anymesh
