#include "models/gpt/gpt_memory_form.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "models/gpt/gpt_parameters.h"

namespace anymesh {
namespace {

constexpr int64_t kMoments = 8;  // bytes that a norm keeps of a row

// Bytes of an operator.
struct Operator {
  int64_t kept = 0;    // tensors that live until its backward, from it on
  int64_t output = 0;  // and the gradient of it
  int64_t input = 0;   // the gradient that its backward makes
  int64_t weight = 0;  // the weight's gradient, until it is added to the sums
  int64_t beside = 0;  // the gradient of the residual beside it
  int64_t copies = 0;  // made and dropped in the forward
};
using Unit = std::vector<Operator>;

struct Parameter {
  int64_t numel;
  int unit;
  bool experts, weight_decay, twice;
};

class StageMemory {
 public:
  StageMemory(const GptConfig& gpt, const StepShape& step, const KeptStates& states, int pp_rank)
      : c(gpt), k(step), of(states), stage(gpt, step.mesh, pp_rank), rank(pp_rank) {
    list_params();
    list_units();
    keep();
    walk();
    update();
  }

  MemoryForm form;

 private:
  const GptConfig& c;
  const StepShape& k;
  const KeptStates& of;
  const GptStage stage;
  const int rank;
  const int64_t t = k.mesh.tp_size, e = k.element_bytes, h = c.hidden_size;
  const int64_t tokens = k.micro_batch_size * c.seq_length;
  const int64_t parts = k.sequence_parallel ? t : 1;  // of the sequence
  const int64_t whole = tokens * h * e, part = whole / parts;
  const ZeroStage zero = k.zero_stage;
  const bool tied = !c.untie_embeddings_and_output_weights;
  std::vector<Parameter> params;
  std::vector<Unit> units;
  int64_t live = 0, peak = 0;  // beside what is kept between steps

  void meet(int64_t more) { peak = std::max(peak, live + more); }

  int64_t ranks_of(bool experts) const {
    const bool spread = k.mesh.ep_size > 1 || k.mesh.whole_experts;
    return experts && spread ? k.mesh.edp_size() : k.mesh.dp_size;
  }

  void list_params() {
    for (const GptParameter& parameter : gpt_parameters(c)) {
      const std::optional<GptStage::Place> place = stage.place_of(parameter);
      if (!place || parameter.buffer) continue;
      params.push_back({numel_on_rank(parameter, c, k.mesh, k.same_bits), place->unit,
                        parameter.experts, parameter.weight_decay,
                        parameter.tied && stage.first && stage.last});
    }
  }

  // The groups of the optimizer, in its order.
  template <class Use>
  void for_groups(const Use& use) const {
    for (const auto& [experts, decay] : {std::pair(false, true), {false, false}, {true, true}}) {
      std::vector<Parameter> group;
      for (const Parameter& p : params)
        if (p.experts == experts && p.weight_decay == decay) group.push_back(p);
      if (!group.empty()) use(group, ranks_of(experts));
    }
  }

  void keep() {
    for_groups([&](const std::vector<Parameter>& group, int64_t ranks) {
      KeptGroup shape{.ranks = zero.partitions_optimizer() ? ranks : 1,
                      .width = e,
                      .states = of.states,
                      .exact = k.same_bits > 0,
                      .params_on_disk = of.params_on_disk,
                      .state_on_disk = of.state_on_disk};
      for (const Parameter& p : group) {
        shape.numel += p.numel;
        if (p.twice) shape.tied += p.numel;
      }
      add_kept_bytes(shape, zero, form.kept);
    });
  }

  void list_units() {
    if (stage.first) {
      const int64_t table = zero.partitions_gradients() ? params[0].numel * e : whole;
      units.push_back({{.kept = tokens * 9 + part, .output = part, .weight = table}});
    }
    for (const int each : stage.layers) units.push_back(layer(each));
    if (!stage.last) return;
    const int64_t table = tied ? params.front().numel : params.back().numel,
                  logits = tokens * e * table / h;
    const int64_t copy = parts > 1 ? whole : 0;  // the sequence is gathered, both times
    units.push_back({norm(),
                     {.kept = part,
                      .output = logits,
                      .input = whole,
                      .weight = table * e,
                      .beside = 2 * copy,
                      .copies = copy},
                     {.kept = logits + 12 * tokens, .input = logits}});
  }

  Operator norm() const {
    return {.kept = kMoments * tokens / parts, .output = part, .input = part};
  }

  // The sum over tp, and the bias added to it, are copies. A sequence is cut into parts before the
  // sum, and the parts of the gradient are gathered.
  Operator row_parallel(int64_t input, int64_t width, bool bias) const {
    const int64_t cut = parts > 1 ? whole : 0;
    return {.kept = input,
            .output = part,
            .input = input,
            .weight = h * width * e,
            .beside = part + cut,
            .copies = cut + (t > 1 ? whole : 0) + (bias ? part : 0)};
  }

  // The sequence's parts are gathered for the matrix, each time, and its gradient is cut into them.
  Operator column_parallel(int64_t width) const {
    const int64_t copy = parts > 1 ? whole : 0;
    return {.kept = part,
            .output = tokens * width * e,
            .input = whole,
            .weight = h * width * e,
            .beside = part + 2 * copy,
            .copies = copy};
  }

  void add_mlp(Unit& unit, int64_t f) const {
    using enum GptConfig::Activation;
    const int64_t width = f / t, act = tokens * width * e, inner = (c.gated() ? 2 : 1) * act;
    const bool keeps_output = c.activation() == kRelu;
    unit.push_back(column_parallel(inner / tokens / e));
    unit.push_back({.kept = keeps_output ? 0 : inner + (c.geglu ? act : 0),
                    .output = act,
                    .input = inner,
                    .beside = part});
    unit.push_back(row_parallel(act, width, c.add_bias_linear));
  }

  void add_experts(Unit& unit) const {
    const bool apart = k.mesh.whole_experts;  // each tp rank sends its own tokens
    const int64_t sent = tokens / (apart ? t : 1), rows = sent * c.moe_router_topk,
                  f = c.moe_ffn_size() / (apart ? 1 : t), own = c.num_experts / k.mesh.ep_size,
                  moved = rows * h * e, inner = rows * f * e, x = sent * h * e,
                  orders = 8 * rows * (k.mesh.ep_size > 1 ? 4 : 2),
                  way = k.mesh.ep_size > 1 ? 2 * moved : 0;  // sent, arrived and sorted
    unit.push_back({.kept = x + orders + 12 * sent * c.num_experts,
                    .output = moved,
                    .input = x,
                    .beside = part + way,
                    .copies = way});
    unit.push_back({.kept = moved,
                    .output = 2 * inner,
                    .input = moved,
                    .weight = 2 * own * h * f * e,
                    .beside = part});
    unit.push_back({.kept = 2 * inner + (c.geglu ? inner : 0),
                    .output = inner,
                    .input = 2 * inner,
                    .beside = part});
    unit.push_back({.kept = inner,
                    .output = moved,
                    .input = inner,
                    .weight = own * h * f * e,
                    .beside = part});
    unit.push_back(
        {.kept = moved, .output = x, .input = moved, .beside = part + way, .copies = way});
    if (c.moe_shared_expert_intermediate_size > 0)
      add_mlp(unit, c.moe_shared_expert_intermediate_size);
  }

  Unit layer(int i) const {
    const int64_t d = c.head_dim(), queries = c.num_attention_heads * d / t,
                  keys = c.key_value_heads() * d / t, width = queries + 2 * keys,
                  qkv = tokens * width * e, mixed = tokens * queries * e,
                  heads = c.num_attention_heads / t;
    Unit unit{norm()};
    unit.push_back(column_parallel(width));
    if (c.qk_layernorm)
      unit.push_back({.kept = (queries + keys) * tokens * e * (c.qk_layernorm_all_heads ? 3 : 1) +
                              kMoments * tokens * (queries + keys) / d,
                      .output = qkv,
                      .input = qkv,
                      .beside = part});
    unit.push_back(
        {.kept = qkv + 4 * tokens * heads, .output = mixed, .input = qkv, .beside = part});
    unit.push_back(row_parallel(mixed, queries, c.attention_output_bias()));
    unit.push_back(norm());
    unit.back().kept += c.use_parallel_residual ? 0 : part;  // the sum before it
    if (c.has_experts(i))
      add_experts(unit);
    else
      add_mlp(unit, c.ffn_size());
    unit.push_back({.kept = part, .output = part, .input = part});  // the sum behind it
    return unit;
  }

  bool recomputes(size_t unit) const {
    return k.activation_checkpointing && (unit > 0 || !stage.first);
  }

  // Bytes of the operators that are done, and what the last of them is about to hold.
  void forward(const Unit& unit) {
    for (const Operator& op : unit) {
      meet(op.kept + op.output + op.copies);
      live += op.kept;
    }
  }
  int64_t kept_by(const Unit& unit) const {
    int64_t sum = 0;
    for (const Operator& op : unit) sum += op.kept;
    return sum;
  }
  // A recomputed unit keeps its output alone, the next one's input.
  int64_t output_of(const Unit& unit) const {
    return &unit == &units.back() && stage.last ? 0 : part;
  }

  // A bucket opens when it gets its first gradient.
  void backward(const Unit& unit, int64_t buckets) {
    for (auto op = unit.rbegin(); op != unit.rend(); ++op) {
      meet(op->output + op->input + op->weight + op->beside);
      live -= op->kept;
      if (op->weight == 0) continue;
      live += std::exchange(buckets, 0);
      meet(op->input + op->weight + op->beside);
    }
  }

  void walk() {
    const int64_t micro_batches = std::min<int64_t>(k.mesh.pp_size - rank, k.micro_batches);
    live = 16 * tokens * k.micro_batches * (stage.first || stage.last);  // the step's tokens
    const int64_t tokens_alone = live;
    for (int64_t i = 0; i < micro_batches; ++i) {
      if (!stage.first) live += part;  // received
      for (size_t u = 0; u < units.size(); ++u) {
        const int64_t before = live;
        const int64_t in_flight = gathered(static_cast<int>(u), 1);
        live += in_flight;
        forward(units[u]);
        live -= in_flight;
        if (recomputes(u)) live = before + output_of(units[u]);
      }
    }
    form.activations = live - tokens_alone;
    if (!stage.last) live += 2 * part;  // the output and its gradient, until the backward ends
    Buckets buckets(*this);
    for (size_t u = units.size(); u-- > 0;) {
      const int64_t in_flight = gathered(static_cast<int>(u), -1);
      live += in_flight;
      const int64_t opened = buckets.open(static_cast<int>(u));
      form.buckets = std::max(form.buckets, buckets.bytes);
      if (recomputes(u)) {
        live -= output_of(units[u]);
        forward(units[u]);
        live += output_of(units[u]);  // the repeated one
      }
      backward(units[u], opened);
      if (recomputes(u)) live -= output_of(units[u]);
      meet(buckets.reduced(static_cast<int>(u)) + units[u].front().weight);
      live -= in_flight + buckets.close(static_cast<int>(u));
    }
  }

  // Stage 3: bytes of a unit's whole parameters and of the next one's buffers, and their peak.
  int64_t gathered(int unit, int direction) {
    if (!zero.partitions_parameters()) return 0;
    int64_t sum = 0, most = 0;
    for (const bool experts : {false, true}) {
      if (experts && ranks_of(true) == ranks_of(false)) break;
      const auto whole_of = [&](int u) {
        int64_t numel = 0;
        for (const Parameter& p : params)
          if ((p.unit == u || (p.twice && u == stage.head().unit)) &&
              (ranks_of(p.experts) == ranks_of(experts)))
            numel += p.numel;
        return numel * e;
      };
      const auto buffers_of = [&](int u) {  // all parts, and this rank's
        return whole_of(u) + whole_of(u) / ranks_of(experts);
      };
      const int64_t here = whole_of(unit);
      most += here + std::max(buffers_of(unit), buffers_of(unit + direction));
      sum += here + buffers_of(unit + direction);
    }
    form.in_flight = std::max(form.in_flight, most);
    meet(most);
    return sum;
  }

  // Stages 2 and 3: a bucket lives from the first gradient of its parameters to the last.
  struct Buckets {
    explicit Buckets(const StageMemory& stage) : of(stage) {
      if (!of.zero.partitions_gradients()) return;
      const auto add = [&](const std::vector<Parameter>& group, size_t first, size_t last,
                           int unit) {
        const bool exact = of.k.same_bits > 0;
        Bucket bucket{.first = unit, .last = unit};
        for (size_t i = first; i < last; ++i) {
          bucket.bytes += group[i].numel * (exact ? 8 : of.e);
          bucket.sum += group[i].numel * (exact ? 8 : 4) / of.ranks_of(group[i].experts);
          if (unit >= 0) continue;
          bucket.last = std::max(bucket.last, group[i].unit);
          bucket.first = bucket.first < 0 ? group[i].unit : std::min(bucket.first, group[i].unit);
        }
        all.push_back(bucket);
      };
      of.for_groups([&](const std::vector<Parameter>& group, int64_t) {
        for (size_t first = 0, last = 0; first < group.size(); first = last) {
          for (int64_t numel = 0;
               last < group.size() && (last == first || numel < kGradientBucket);)
            numel += group[last++].numel;
          add(group, first, last, -1);
        }
        for (size_t i = 0; i < group.size(); ++i)
          if (group[i].twice) add(group, i, i + 1, of.stage.head().unit);
      });
    }
    int64_t open(int unit) {
      int64_t more = 0;
      for (const Bucket& b : all) more += b.last == unit ? b.bytes : 0;
      bytes += more;
      return more;
    }
    // The largest sum that the unit's last gradient starts.
    int64_t reduced(int unit) const {
      int64_t most = 0;
      for (const Bucket& b : all) most = std::max(most, b.first == unit ? b.sum : 0);
      return most;
    }
    int64_t close(int unit) {
      int64_t less = 0;
      for (const Bucket& b : all) less += b.first == unit ? b.bytes : 0;
      bytes -= less;
      return less;
    }
    struct Bucket {
      int64_t bytes = 0, sum = 0;  // of all ranks' elements, and of this rank's
      int first, last;             // units
    };
    const StageMemory& of;
    std::vector<Bucket> all;
    int64_t bytes = 0;
  };

  // Stages 1 and 2 gather the new parameters through a buffer.
  void update() {
    live = 16 * tokens * k.micro_batches * (stage.first || stage.last);
    if (zero.partitions_optimizer() && !zero.partitions_parameters())
      for_groups([&](const std::vector<Parameter>& group, int64_t ranks) {
        int64_t numel = 0;
        for (const Parameter& p : group) numel += p.numel;
        if (ranks > 1) meet(std::min(numel / ranks, gathered_at_once(ranks)) * ranks * e);
      });
    form.peak = form.kept.sum() + peak;
  }
};

}  // namespace

MemoryForm memory_form(const GptConfig& gpt, const StepShape& step, const KeptStates& states,
                       int pp_rank) {
  return StageMemory(gpt, step, states, pp_rank).form;
}

}  // namespace anymesh
