#include <algorithm>
#include <tuple>

#include "models/gpt/gpt_parameters.h"
#include "tools/plan/mesh_plan.h"

namespace anymesh {
namespace {

// Which group's calls are made for each micro-batch. The others are made once a step.
bool is_of_micro_batch(const std::string& group, const std::string& verb, int zero_stage) {
  if (group == "tp" || group == "ep") return true;
  if (group == "pp") return verb == "exchange";
  if (group != "dp" && group != "edp") return false;
  return (verb == "reduce_scatter" && zero_stage >= 2) || (verb == "all_gather" && zero_stage == 3);
}

// Bytes on the wire over bytes of payload (docs/scaling.md).
double wire_factor(const std::string& verb, double ranks) {
  if (verb == "exchange" || verb == "broadcast") return 1;
  return (verb == "all_reduce" ? 2 : 1) * (ranks - 1) / ranks;
}

struct Links {
  const Topology& mesh;
  const Machine& machine;

  // Ranks of the group, and the ranks of the world from its first to its last.
  std::pair<int, int> group(const std::string& name) const {
    const int t = mesh.tp_size, d = mesh.dp_size, all = mesh.world_size();
    if (name == "tp") return {t, t};
    if (name == "dp") return {d, t * d};
    if (name == "ep") return {mesh.ep_size, mesh.ep_size * (mesh.whole_experts ? 1 : t)};
    if (name == "edp") return {mesh.edp_size(), t * d};
    if (name == "pp") return {mesh.pp_size, all};
    if (name == "embedding") return {2, all};
    return {all, all};
  }
  double seconds(const std::string& name, const std::string& verb, const CommSum& sum) const {
    const auto [ranks, span] = group(name);
    const double rate =
        (span <= machine.node ? machine.nvlink : machine.network) * machine.link_efficiency * 1e9;
    return static_cast<double>(sum.bytes) * wire_factor(verb, ranks) / rate +
           static_cast<double>(sum.calls) * machine.latency * 1e-6;
  }
};

// Operations of a micro-batch's forward on a rank of the stage, and the parameters that it holds.
struct Work {
  double products = 0, params = 0, own_state = 0;
};

// Products of matrices with rows, two operations each, and attention's scores over all s keys, as
// papers count them. The mesh of one rank gives the whole model's.
Work work_of(const GptConfig& c, const std::vector<GptParameter>& params, const StepShape& k,
             int pp_rank) {
  const GptStage stage(c, k.mesh, pp_rank);
  const double tokens = static_cast<double>(k.micro_batch_size * c.seq_length);
  Work work;
  for (const GptParameter& p : params) {
    if (!stage.place_of(p) || p.buffer) continue;
    const auto numel = static_cast<double>(numel_on_rank(p, c, k.mesh, k.same_bits));
    const bool spread = p.experts && (k.mesh.ep_size > 1 || k.mesh.whole_experts);
    work.params += numel;
    work.own_state += numel / (k.zero_stage == 0 ? 1 : spread ? k.mesh.edp_size() : k.mesh.dp_size);
    if (p.shape.size() < 2 || p.looked_up) continue;
    const bool is_head = p.vocabulary && stage.last && (p.tied || p.layer > 1);
    if (p.vocabulary && !is_head) continue;
    // An expert sees its share of the rows that the rank's tokens choose.
    const double rows = !p.experts ? tokens
                                   : tokens / (k.mesh.whole_experts ? k.mesh.tp_size : 1) *
                                         c.moe_router_topk / c.num_experts * k.mesh.ep_size;
    work.products += 2 * numel * rows;
  }
  const double scores = 4 * tokens * c.seq_length * c.head_dim() * c.num_attention_heads;
  work.products += static_cast<double>(stage.layers.size()) * scores / k.mesh.tp_size;
  return work;
}

struct StageTime {
  StepTime micro_batches;  // of all of them
  StepTime once;
};

StageTime time_of(const PlanStage& stage, const Work& work, const MeshChoice& choice,
                  const Machine& machine) {
  const StepShape& k = choice.step;
  const double m = static_cast<double>(k.micro_batches), e = static_cast<double>(k.element_bytes),
               memory = machine.memory_bandwidth * machine.link_efficiency * 1e9;
  StageTime time;
  time.micro_batches.products = m * (k.activation_checkpointing ? 4 : 3) * work.products /
                                (machine.tflops * machine.efficiency * 1e12);
  time.micro_batches.gradients = m * 8 * work.params / memory;  // sums are read and written
  // The gradient is read twice and cleared, weights and states are read and written.
  const double bytes = 12 + 8.0 * static_cast<double>(choice.states.states) + (e == 2 ? 10 : 8);
  time.once.optimizer = bytes * work.own_state / memory;
  const Links links{k.mesh, machine};
  for (const auto& [key, sum] : stage.traffic) {
    const auto& [group, verb] = key;
    StepTime& part = is_of_micro_batch(group, verb, k.zero_stage) ? time.micro_batches : time.once;
    double& seconds = group == "tp"                         ? part.tp
                      : group == "ep"                       ? part.ep
                      : group == "pp" && verb == "exchange" ? part.pp
                                                            : part.dp;
    seconds += links.seconds(group, verb, sum);
  }
  return time;
}

// The slowest stage works without a pause. Before it the others fill the pipeline, after it they
// drain it.
StepTime step_time(const MeshPlan& plan, const std::vector<StageTime>& times) {
  const double m = static_cast<double>(plan.choice.step.micro_batches);
  size_t slowest = 0, last = 0;
  double all = 0;
  for (size_t i = 0; i < times.size(); ++i) {
    const double own = times[i].micro_batches.sum();
    all += plan.stages[i].count * own / m;
    if (own > times[slowest].micro_batches.sum()) slowest = i;
    if (times[i].once.sum() > times[last].once.sum()) last = i;
  }
  StepTime time = times[slowest].micro_batches;
  time.bubble = all - time.sum() / m;
  const StepTime& once = times[last].once;
  time.tp += once.tp;
  time.dp += once.dp;
  time.optimizer = once.optimizer;
  return time;
}

// Stages with as many layers, and as many of them with experts, between the same ends.
std::vector<PlanStage> alike_stages(const GptConfig& gpt, const Topology& mesh) {
  std::map<std::tuple<bool, bool, int, int>, PlanStage> kinds;
  for (int pp = 0; pp < mesh.pp_size; ++pp) {
    const GptStage stage(gpt, mesh, pp);
    int mixtures = 0;
    for (const int layer : stage.layers) mixtures += gpt.has_experts(layer);
    PlanStage& kind =
        kinds[{!stage.first, stage.last, -static_cast<int>(stage.layers.size()), mixtures}];
    if (kind.count++ == 0) kind.first = pp;
  }
  std::vector<PlanStage> stages;
  for (auto& [key, kind] : kinds) stages.push_back(std::move(kind));
  return stages;
}

}  // namespace

MeshPlan plan_of(const MeshChoice& choice, const GptConfig& gpt, const Machine& machine) {
  MeshPlan plan{.choice = choice, .stages = alike_stages(gpt, choice.step.mesh)};
  const StepShape& k = choice.step;
  const std::vector<GptParameter> params = gpt_parameters(gpt);
  std::vector<StageTime> times;
  int64_t most = -1;
  for (PlanStage& stage : plan.stages) {
    stage.traffic = comm_form(gpt, k, stage.first);
    std::map<std::string, int64_t> bytes;
    for (auto& [key, sum] : stage.traffic) {
      sum = {sum.calls / k.mesh.dp_size, sum.bytes / k.mesh.dp_size};
      bytes[key.first] += sum.bytes;
    }
    for (const auto& [group, own] : bytes) plan.bytes[group] = std::max(plan.bytes[group], own);
    stage.memory = memory_form(gpt, k, choice.states, stage.first);
    if (stage.memory.peak > most) plan.worst = stage.first, most = stage.memory.peak;
    times.push_back(time_of(stage, work_of(gpt, params, k, stage.first), choice, machine));
  }
  StepShape alone = k;
  plan.fits = static_cast<double>(most) <= kUsable * machine.memory * (1 << 30);
  plan.time = step_time(plan, times);
  alone.mesh = {};
  const double m = static_cast<double>(k.micro_batches * k.mesh.dp_size);
  plan.model_flops = 3 * m * work_of(gpt, params, alone, 0).products;
  plan.mfu = plan.model_flops / (plan.time.sum() * machine.tflops * 1e12 * k.mesh.world_size());
  plan.tokens_per_second =
      m * static_cast<double>(k.micro_batch_size * gpt.seq_length) / plan.time.sum();
  return plan;
}

}  // namespace anymesh
