#include "models/gpt/gpt_comm_form.h"

#include <algorithm>
#include <vector>

#include "framework/zero/memory_form.h"
#include "models/gpt/gpt_parameters.h"

namespace anymesh {
namespace {

constexpr int64_t kWindow = kGradientBucket;

int64_t rounded_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }
int64_t windows(int64_t elements, int64_t window = kWindow) {
  return (elements + window - 1) / window;
}

// Letters are as in docs/scaling.md.
class ClosedForm {
 public:
  ClosedForm(const GptConfig& gpt, const StepShape& step, int pp_rank)
      : c(gpt),
        k(step),
        stage(gpt, step.mesh, pp_rank),
        tied(!c.untie_embeddings_and_output_weights) {
    list_params();
    tensor_parallel();
    pipeline();
    data_parallel();
    tied_embedding();
    add("world", "all_reduce", 1, exact ? 4 * 8 : 8);  // the gradient norm
  }

  CommForm form;

 private:
  using Sum = GptParameter::Sum;
  enum class Kind { kDecayed, kOthers, kExperts };  // a group of the optimizer
  static constexpr Kind kKinds[] = {Kind::kDecayed, Kind::kOthers, Kind::kExperts};
  struct Param {
    int64_t numel;
    GptStage::Place place;
    Kind kind;
    Sum sum;
  };
  const GptConfig& c;
  const StepShape& k;
  const int64_t t = k.mesh.tp_size, p = k.mesh.pp_size, d = k.mesh.dp_size, m = k.micro_batches;
  const int64_t h = c.hidden_size, e = k.element_bytes;
  const int64_t tokens = k.micro_batch_size * c.seq_length;
  const int64_t hidden = tokens * h * e;  // b s h, in bytes
  const bool exact = k.same_bits > 0;
  const int64_t g = exact ? 8 : 4;  // bytes of a gradient's sum
  const int64_t table =
      padded_vocab_size(c, std::max(k.mesh.tp_size, static_cast<int>(k.same_bits))) / t * h;
  const GptStage stage;
  const bool first = stage.first, last = stage.last, tied;
  const int64_t layers = static_cast<int64_t>(stage.layers.size());
  const bool whole = k.mesh.whole_experts, spread = k.mesh.ep_size > 1 || whole;
  int64_t regions = 0;   // of tensor parallelism: attentions, MLPs, and experts that tp cuts
  int64_t products = 0;  // that enter such a region: of all but the experts
  int64_t mixtures = 0;
  int64_t repeats = 0;  // regions that the backward runs once more, beside whole layers
  std::vector<Param> params;

  int64_t group_size(const std::string& group) const {
    if (group == "tp") return t;
    if (group == "pp") return p;
    if (group == "dp") return d;
    if (group == "ep") return k.mesh.ep_size;
    if (group == "edp") return k.mesh.edp_size();
    if (group == "embedding") return p > 1 && (first || last) ? 2 : 1;
    return t * p * d;
  }

  // Adds calls of each dp rank. Their bytes may differ in size: `bytes` is their sum.
  void add_all(const std::string& group, const std::string& verb, int64_t calls, int64_t bytes) {
    if (group_size(group) == 1 || calls == 0) return;
    CommSum& sum = form[{group, verb}];
    sum.calls += d * calls;
    sum.bytes += d * bytes;
  }
  void add(const std::string& group, const std::string& verb, int64_t calls, int64_t each) {
    add_all(group, verb, calls, calls * each);
  }

  // Lists what a rank of the stage holds of each parameter, and counts what its layers have.
  void list_params() {
    for (const GptParameter& parameter : gpt_parameters(c)) {
      const std::optional<GptStage::Place> place = stage.place_of(parameter);
      if (!place || parameter.buffer) continue;
      const int64_t numel = numel_on_rank(parameter, c, k.mesh, k.same_bits);
      const Kind others = parameter.weight_decay ? Kind::kDecayed : Kind::kOthers;
      params.push_back(
          {numel, *place, parameter.experts ? Kind::kExperts : others, parameter.tp_sum});
    }
    for (const int layer : stage.layers) {
      const bool mixture = c.has_experts(layer);
      mixtures += mixture;
      products += mixture && c.moe_shared_expert_intermediate_size == 0 ? 1 : 2;
      regions += mixture && !whole;
      if (c.recomputes(mixture ? "moe" : "mlp"))
        repeats += mixture ? !whole + (c.moe_shared_expert_intermediate_size > 0) : 1;
    }
    regions += products;
  }

  // Counts how often each of the four maps of mappings.h runs.
  void tensor_parallel() {
    const int64_t forwards = k.activation_checkpointing ? 2 : 1, again = m * (products + last),
                  passes = forwards * regions + repeats;  // of a micro-batch through regions
    const int64_t enter_forward = m * (passes + forwards * last),
                  leave_forward = m * (passes + first), enter_backward = m * (regions + last),
                  leave_backward = m * (regions + first);
    if (exact) {
      fixed_maps(passes, forwards);
    } else if (k.sequence_parallel) {
      add("tp", "all_gather", enter_forward + again + leave_backward, hidden);
      add("tp", "reduce_scatter", leave_forward + enter_backward, hidden);
    } else {
      add("tp", "all_reduce", leave_forward + enter_backward, hidden);
    }
    if (c.qk_layernorm_all_heads)  // sums of squares of queries and keys
      add("tp", "all_reduce", m * (forwards + 1) * layers, tokens * 2 * 4);
    gradient_sums();
    token_exchanges(forwards + c.recomputes("moe"));
    expert_tokens();
    if (last) cross_entropy(m * forwards);
  }

  // Sums of row-parallel products and of column-parallel inputs' gradients are exchanged in fp32,
  // each rank adds its share of them, and these are gathered. The embedding's sum is exact anyway.
  void fixed_maps(int64_t passes, int64_t forwards) {
    const int64_t sums = m * (passes + regions + last), share = tokens * h / t;
    if (k.sequence_parallel) {
      add("tp", "all_to_all", sums, 4 * tokens * h);
      add("tp", "all_gather", m * (passes + forwards * last + regions + first), hidden);
      add("tp", "reduce_scatter", m * first, hidden);
    } else {
      add("tp", "all_to_all", sums, 4 * t * share);
      add("tp", "all_gather", sums, e * t * share);
      add("tp", "all_reduce", m * first, hidden);
    }
  }

  void cross_entropy(int64_t times) {
    add("tp", "all_reduce", (exact ? 2 : 3) * times, tokens * 4);
    if (exact) add("tp", "all_gather", times, k.same_bits * tokens * 4);
  }

  // Each way of the tokens is an exchange in the forward and one in the backward. The numbers of
  // rows travel before them.
  void token_exchanges(int64_t forwards) {
    const int64_t count = c.num_experts, rows = tokens / (whole ? t : 1) * c.moe_router_topk;
    add("ep", "all_to_all", mixtures * m * forwards, count * 8);
    add("ep", "all_to_all", mixtures * m * (2 * forwards + 2), rows * h * e);
    if (whole && c.moe_aux_loss_coeff > 0)
      add("tp", "all_reduce", mixtures * m * forwards, count * 4);
  }

  // The tokens of each expert, for the routers' biases or the log.
  void expert_tokens() {
    if (!(c.moe_router_enable_expert_bias || c.moe_per_layer_logging) || mixtures == 0) return;
    add("dp", "all_reduce", 1, mixtures * c.num_experts * 8);
    if (whole) add("tp", "all_reduce", 1, mixtures * c.num_experts * 8);
  }

  bool is_summed(const Param& param) const {
    return param.sum == Sum::kAlways || (param.sum == Sum::kOfSequence && k.sequence_parallel);
  }

  // Whether dp rank r has gradients that tp sums, in its partitions if there are any.
  bool has_sums(int64_t r) const {
    for (const Kind kind : {Kind::kDecayed, Kind::kOthers}) {
      const int64_t partition = rounded_up(numel(kind), 2 * d) / d;
      int64_t at = 0;
      for (const Param& param : params) {
        if (param.kind != kind) continue;
        const int64_t n = param.numel, end = at + n;
        const bool here = k.zero_stage == 0 ||
                          (k.zero_stage == 3 ? r * ((n + d - 1) / d) < n
                                             : at < (r + 1) * partition && end > r * partition);
        if (here && is_summed(param)) return true;
        at = end;
      }
    }
    return false;
  }

  void gradient_sums() {
    int64_t numel = 0;
    for (const Param& param : params) numel += is_summed(param) ? param.numel : 0;
    if (t == 1 || numel == 0) return;
    CommSum& sum = form[{"tp", "all_reduce"}];
    for (int64_t r = 0; r < d; ++r) sum.calls += has_sums(r);
    sum.bytes += numel * g * (k.zero_stage == 0 ? d : 1);  // or the partitions, all together
  }

  void pipeline() {
    const int64_t part = k.sequence_parallel ? hidden / t : hidden;
    add("pp", "exchange", m * (2 * k.mesh.chunks - first - last), part);  // each way, but the ends
    add("pp", "broadcast", exact ? 2 : 1, 8);                             // the loss
  }

  int64_t numel(Kind kind) const {
    int64_t sum = 0;
    for (const Param& param : params) sum += param.kind == kind ? param.numel : 0;
    return sum;
  }

  // Stages 0 and 1 reduce sums of more elements at once, and chunks together.
  int64_t buckets(Kind kind) const {
    const bool whole_sums = k.zero_stage < 2;
    const int64_t most = whole_sums ? kReducedAtOnce : kWindow;
    int64_t count = 0, open = most;  // elements of the open bucket
    int chunk = 0;
    for (const Param& param : params) {
      if (param.kind != kind) continue;
      if (open >= most || (param.place.chunk != chunk && !whole_sums)) open = 0, ++count;
      open += param.numel;
      chunk = param.place.chunk;
    }
    return count;
  }

  void data_parallel() {
    const int z = k.zero_stage;
    const int64_t own = z >= 2 && !exact ? e : g,
                  sent = k.gradient_bytes > 0 ? k.gradient_bytes : own;
    if (!exact) add("dp", "all_reduce", 1, 8);  // the loss
    if (exact && last) add("dp", "all_gather", 1, d * m * k.micro_batch_size * 8);
    for (const Kind kind : kKinds) {
      const std::string group = replicas(kind == Kind::kExperts);
      const int64_t n = numel(kind), ranks = group_size(group), flat = rounded_up(n, 2 * ranks);
      if (n == 0) continue;
      if (z == 0) add_all(group, "all_reduce", buckets(kind), rounded_up(n, 2) * g);
      if (z == 1) add_all(group, "reduce_scatter", buckets(kind), flat * sent);
      if (z >= 2) add_all(group, "reduce_scatter", m * buckets(kind), m * n * sent);
      if (z == 1 || z == 2)
        add_all(group, "all_gather", windows(flat / ranks, gathered_at_once(ranks)), flat * e);
    }
    const bool twice = tied && first && last;
    if (z == 0 && twice) add("dp", "all_reduce", 1, table * g);
    if (z == 1 && twice) add("dp", "reduce_scatter", 1, table * sent);
    if (z >= 2 && twice) add("dp", "reduce_scatter", m, table * sent);
    if (z == 3) gather_units(twice);
  }

  // The ranks that hold the same parameters.
  const char* replicas(bool experts) const { return experts && spread ? "edp" : "dp"; }

  // Stage 3 gathers a unit's parameters in each group that holds some.
  void gather_units(bool twice) {
    const int head = stage.head().unit, units = head + last;
    for (int unit = 0; unit < units; ++unit) {
      std::map<std::string, int64_t> whole_of;
      if (twice && unit == head) whole_of["dp"] = rounded_up(table, d);
      for (const Param& param : params) {
        const std::string group = replicas(param.kind == Kind::kExperts);
        if (param.place.unit == unit) whole_of[group] += rounded_up(param.numel, group_size(group));
      }
      for (const auto& [group, numel] : whole_of) add(group, "all_gather", 2 * m, numel * e);
    }
  }

  void tied_embedding() {
    if (!tied || p == 1 || !(first || last)) return;
    if (k.zero_stage >= 1) add_all("dp", "all_reduce", windows(table), table * g);
    add("embedding", "all_reduce", 1, table * g);
  }
};

}  // namespace

CommForm comm_form(const GptConfig& gpt, const StepShape& step, int pp_rank) {
  return ClosedForm(gpt, step, pp_rank).form;
}

}  // namespace anymesh
