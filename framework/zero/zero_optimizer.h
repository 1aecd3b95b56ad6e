#pragma once

#include <array>
#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "framework/comm/process_grid.h"
#include "framework/config/engine_config.h"
#include "framework/pipeline/unit_runner.h"
#include "framework/zero/exact_sum.h"
#include "framework/zero/gradient_sum.h"
#include "framework/zero/later_gradients.h"
#include "framework/zero/memory_form.h"
#include "framework/zero/offload/streamer.h"
#include "framework/zero/param_gather.h"
#include "framework/zero/param_group.h"
#include "framework/zero/sharded_params.h"
#include "framework/zero/stage.h"
#include "framework/zero/sum_reductions.h"

namespace anymesh {

// An optimizer (optim/optimizer.h) with its state partitioned over the data-parallel group, as the
// stage says (stage.h).
//
// Parameters form groups, with weight decay, without it, and experts, in DeepSpeed's layouts and
// order (param_group.h), so that a save writes the state as it is, in memory or offloaded to disk.
// Each group has one optimizer; Muon makes two out of a group with matrices and others.
// Gradients are summed in fp32 (float64 for float64 models), whatever the parameters' dtype. An
// fp32 parameter is its own fp32 master. Parameters come without memory (ParamSpec); at stage 3 a
// rank allocates only its fragments of them.
//
// With --same-bits, gradients are summed exactly (exact_sum.h). Otherwise every sum over dp is
// folded in rank order. Stages 0 and 1 sum micro-batches first and ranks second, stages 2 and 3 the
// other way round. All bits agree within each pair and, with one micro-batch, across all four
// stages. The two uses of a tied weight are added last.
class ZeroOptimizer final : public UnitObserver {
 public:
  using Group = ParamGroup;
  using Piece = ParamGroup::Piece;

  // A parameter that is not trained: it is in no group and has no gradient or state.
  struct Frozen {
    ParamSpec spec;
    int64_t start;       // the first element kept, in this tp rank's slice
    StateTensor part;    // the whole slice; at stage 3 [ceil(n / dp)], padded
    StateTensor weight;  // `part` without the padding
  };

  // Throws if the swap file cannot be made. Collective over grid.world.
  ZeroOptimizer(const std::vector<ParamSpec>& params, const ProcessGrid& grid, ZeroConfig config);

  // Reduces the accumulated gradients and returns their global norm, before clipping. On a rank
  // with a non-finite gradient local_square_sum() is not finite.
  double reduce_gradients();
  double local_square_sum() const { return local_square_sum_; }

  // Call this before the first backward of a step over `samples`, whose gradients are `loss_scale`
  // times too large.
  void begin_step(double loss_scale, int64_t samples);

  // Clips, updates this rank's partition, clears the gradients and gathers the parameters, if asked
  // for beside the next forward. The gradients and `grad_norm` are `loss_scale` times too large.
  void step(double lr, double grad_norm, double loss_scale = 1);
  void clear_gradients();
  // Call this before parameters are read outside of a forward.
  void finish_gather();

  // Sets the parameters from the masters, on all ranks. Call this after loading masters.
  void params_from_masters();

  // UnitObserver; set this object on the stage's runner.
  void before_forward(int unit) override;
  void after_forward(int unit) override {
    for (ShardedParams& params : sharded_) params.after_forward(unit);
  }
  void before_backward(int unit) override {
    for (ShardedParams& params : sharded_) params.before_backward(unit);
  }
  void begin_backward(bool splits, bool is_last) override;
  void end_backward() override;
  void make_gradients(bool is_last) override;

  const ZeroConfig& config() const { return config_; }
  ZeroStage stage() const { return config_.stage; }
  std::vector<Group>& groups() { return groups_; }
  const std::vector<Group>& groups() const { return groups_; }
  const std::vector<Frozen>& frozen() const { return frozen_; }
  // The ranks that hold a parameter, as ParamGroup::replicas, and one partition of it each.
  const CommPtr& replicas_of(const ParamSpec& spec) const {
    return spec.experts ? grid_.edp : grid_.dp;
  }
  const CommPtr& partitions_of(const ParamSpec& spec) const {
    return stage().partitions_optimizer() ? replicas_of(spec) : alone_;
  }
  // Whether the elements that this rank holds of a parameter count where each element of the model
  // counts once: of its partition, or else of its whole slice. Not those of a replica, on another
  // tp or dp rank, nor the last stage's copy of a tied weight.
  bool counts_here(const ParamSpec& spec, bool partitioned) const;

  // Bytes for --report-memory: the sums of second uses, the buckets' buffers, stage 3's peak in
  // flight, and the buffers of state on disk.
  int64_t second_use_bytes() const;
  const ByteGauge& bucket_bytes() const { return reductions_.bytes; }
  int64_t in_flight_bytes() const;
  int64_t offload_buffer_bytes() const { return streamer_.allocated_bytes(); }

  const Optimizer& optimizer() const { return *optimizer_; }

  int64_t steps = 0;  // made so far

 private:
  static constexpr int64_t kBucket = kGradientBucket;

  // The gradient of one of a stage's two uses of a tied weight. It is summed apart and added once
  // per step.
  struct SecondUse {
    const Group& group;
    size_t param;
    torch::Tensor sums;                    // the same elements as sum_of(group, param)
    GradientSum* whole_sum;                // stages 0 and 1: adds to `sums`
    std::optional<GradientBucket> bucket;  // stages 2 and 3: adds to `sums`
  };
  // Works on the part of a piece that a sweep has in memory. Tensors that the sweep does not use
  // are undefined. `rounded` is the weight of a group that has masters.
  using Work = std::function<void(const Optimizer::Tensors&)>;
  using Use = Streamer::Use;

  void add_frozen(const ParamSpec& spec);
  void add_groups(double weight_decay, const std::vector<ParamSpec>& all,
                  const std::function<bool(const ParamSpec&)>& has);
  void add_group(double weight_decay, const Optimizer& optimizer, std::vector<ParamSpec> params);
  void add_state(Group& group);
  void add_pieces(Group& group);
  void whole_gradients(const Group& group);
  void flush_buckets();
  void bucketed_gradients(Group& group);
  void shard_params();

  torch::Tensor my_sums(const Group& group) const;
  torch::Tensor sum_of(const Group& group, size_t param) const;
  void sweep(const Group& group, Use weights, Use masters, Use states, const Work& work);
  void sweep_masters(Use weights, Use masters, const Work& work);
  void reduce_whole_gradients();
  void add_tied_gradients();
  void add_tied_partitions(const Group& group, size_t param);
  void add_tp_parts();
  void gather_params();
  // The dtype in which gradients travel; none: the one that they are in.
  std::optional<torch::Dtype> sent_dtype(const Group& group) const;

  const ProcessGrid& grid_;
  ZeroConfig config_;
  const std::shared_ptr<const Optimizer> optimizer_;
  std::optional<ExactSum> exact_;  // of --same-bits
  CommPtr alone_;
  std::array<CommPtr, 2> holders_;  // of dense parameters and of experts, if matrices are seen
  std::shared_ptr<SwapFile> swap_;  // null if all state is in memory
  Streamer streamer_;
  std::vector<Group> groups_;
  std::vector<Frozen> frozen_;
  std::deque<SecondUse> second_uses_;
  std::deque<GradientSum> whole_sums_;
  SumReductions sum_reductions_;
  LaterGradients later_;
  bool is_last_backward_ = false;       // of the step, for its chunk
  std::deque<ParamGather> gathers_;     // by group; empty at stages 0 and 3
  std::vector<ShardedParams> sharded_;  // by replicas; empty below stage 3
  BucketReductions reductions_;
  double local_square_sum_ = 0;
};

}  // namespace anymesh
