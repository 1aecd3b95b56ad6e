#include "tools/plan/printed_plan.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "framework/util/errors.h"
#include "framework/util/format.h"
#include "framework/util/parse_number.h"
#include "models/gpt/gpt_parameters.h"

namespace anymesh {
namespace {

using Json = nlohmann::ordered_json;

double gib(int64_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

const MemoryForm& worst(const MeshPlan& plan) {
  return std::ranges::find(plan.stages, plan.worst, &PlanStage::first)->memory;
}

// The activations if recomputation were on or off instead.
int64_t other_activations(const MeshPlan& plan, const GptConfig& gpt) {
  StepShape other = plan.choice.step;
  other.activation_checkpointing = !other.activation_checkpointing;
  return memory_form(gpt, other, plan.choice.states, plan.worst).activations;
}

using Seconds = std::pair<const char*, double>;
std::vector<Seconds> parts_of(const StepTime& t) {
  return {{"products", t.products},
          {"gradients", t.gradients},
          {"tp", t.tp},
          {"ep", t.ep},
          {"pp", t.pp},
          {"dp", t.dp},
          {"bubble", t.bubble},
          {"optimizer", t.optimizer}};
}

using Bytes = std::pair<const char*, int64_t>;
std::vector<Bytes> parts_of(const MemoryForm& m) {
  return {{"parameters", m.kept.parameters},
          {"gradients", m.kept.gradients},
          {"optimizer state", m.kept.state},
          {"tied copies", m.kept.copies},
          {"offload buffers", m.kept.buffers},
          {"activations", m.activations},
          {"the rest at the peak", m.peak - m.kept.sum() - m.activations}};
}

std::string mesh_flags(const MeshPlan& plan) {
  const StepShape& k = plan.choice.step;
  const ParallelConfig& mesh = plan.choice.config.parallel;
  const auto flag = [](const char* name, int64_t value, bool shown) {
    return shown ? string_printf(" --%s %lld", name, static_cast<long long>(value)) : "";
  };
  return flag("tensor-model-parallel-size", mesh.tp, mesh.tp > 1) +
         flag("pipeline-model-parallel-size", mesh.pp, mesh.pp > 1) +
         flag("expert-model-parallel-size", mesh.ep, mesh.ep > 1) +
         flag("expert-tensor-parallel-size", 1, mesh.whole_experts()) +
         flag("micro-batch-size", k.micro_batch_size, true) +
         flag("zero-stage", k.zero_stage, true) +
         (k.sequence_parallel ? " --sequence-parallel" : "") +
         (k.activation_checkpointing ? " --activation-checkpointing" : "");
}

Json json_of(const MemoryForm& m) {
  Json json;
  for (const auto& [name, bytes] : parts_of(m)) json[name] = bytes;
  json["kept"] = m.kept.sum();
  json["gradient buckets"] = m.buckets;
  json["layers in flight"] = m.in_flight;
  json["peak"] = m.peak;
  return json;
}

Json json_of(const MeshPlan& plan, const GptConfig& gpt) {
  const StepShape& k = plan.choice.step;
  Json json{{"mesh", plan.choice.name},
            {"tp", k.mesh.tp_size},
            {"pp", k.mesh.pp_size},
            {"dp", k.mesh.dp_size},
            {"ep", k.mesh.ep_size},
            {"whole_experts", k.mesh.whole_experts},
            {"zero", k.zero_stage},
            {"micro_batch_size", k.micro_batch_size},
            {"micro_batches", k.micro_batches},
            {"sequence_parallel", k.sequence_parallel},
            {"recompute", k.activation_checkpointing},
            {"fits", plan.fits},
            {"memory", json_of(worst(plan))},
            {k.activation_checkpointing ? "activations_kept" : "activations_recomputed",
             other_activations(plan, gpt)},
            {"bytes", plan.bytes}};
  for (const auto& [name, seconds] : parts_of(plan.time)) json["time"][name] = seconds;
  json["step"] = plan.time.sum();
  json["bubble"] = plan.time.bubble / plan.time.sum();
  json["mfu"] = plan.mfu;
  json["tokens_per_second"] = plan.tokens_per_second;
  json["flags"] = mesh_flags(plan).substr(1);
  for (const PlanStage& stage : plan.stages) {
    Json traffic = Json::array();
    for (const auto& [key, sum] : stage.traffic)
      traffic.push_back(
          {{"group", key.first}, {"verb", key.second}, {"calls", sum.calls}, {"bytes", sum.bytes}});
    json["stages"].push_back({{"first", stage.first},
                              {"count", stage.count},
                              {"memory", json_of(stage.memory)},
                              {"traffic", traffic}});
  }
  return json;
}

std::string row_of(const MeshPlan& plan) {
  return string_printf("%-38s %9.2f %6.1f %% %11.1f %12.0f %6.1f %%%s\n", plan.choice.name.c_str(),
                       gib(worst(plan).peak), 100 * plan.time.bubble / plan.time.sum(),
                       1e3 * plan.time.sum(), plan.tokens_per_second, 100 * plan.mfu,
                       plan.fits ? "" : "  does not fit");
}

std::string explained(const PrintedPlans& p, const MeshPlan& plan) {
  const StepShape& k = plan.choice.step;
  std::string text =
      string_printf("%s: %lld micro-batches of %lld samples on each of %d\n\n",
                    plan.choice.name.c_str(), static_cast<long long>(k.micro_batches),
                    static_cast<long long>(k.micro_batch_size), k.mesh.dp_size);
  text += string_printf("memory of a rank of stage %d, GiB\n", plan.worst);
  for (const auto& [name, bytes] : parts_of(worst(plan)))
    if (bytes > 0) text += string_printf("  %-24s %10.3f\n", name, gib(bytes));
  text += string_printf("  %-24s %10.3f of %.3f, of which %.3f are used\n", "sum",
                        gib(worst(plan).peak), p.machine.memory, kUsable * p.machine.memory);
  text += string_printf("  activations would take %.3f %s recomputation\n\n",
                        gib(other_activations(plan, p.gpt)),
                        k.activation_checkpointing ? "without" : "with");
  text += "payload of a rank in a step           calls           bytes\n";
  for (const PlanStage& stage : plan.stages) {
    text += string_printf(stage.count > 1 ? "  stage %d and %d more like it\n" : "  stage %d\n",
                          stage.first, stage.count - 1);
    for (const auto& [key, sum] : stage.traffic)
      text +=
          string_printf("    %-10s %-16s %10lld %15lld\n", key.first.c_str(), key.second.c_str(),
                        static_cast<long long>(sum.calls), static_cast<long long>(sum.bytes));
  }
  text += "\ntime of a step, ms\n";
  for (const auto& [name, seconds] : parts_of(plan.time))
    if (seconds > 0) text += string_printf("  %-24s %10.2f\n", name, 1e3 * seconds);
  text += string_printf(
      "  %-24s %10.2f\n\n%.4g operations of the model a step: %.1f TFLOP/s a rank, MFU %.1f %% of "
      "%g TFLOP/s\n\n",
      "sum", 1e3 * plan.time.sum(), plan.model_flops,
      plan.model_flops / plan.time.sum() / k.mesh.world_size() / 1e12, 100 * plan.mfu,
      p.machine.tflops);
  return text;
}

const MeshPlan& mesh_named(const PrintedPlans& p) {
  const auto found = std::ranges::find_if(
      p.plans, [&](const MeshPlan& plan) { return plan.choice.name == p.explain; });
  if (found != p.plans.end()) return *found;
  const auto place = parse_number<size_t>(p.explain);
  if (place && *place >= 1 && *place <= p.plans.size()) return p.plans[*place - 1];
  throw_error("--explain (", p.explain, "): expected a legal mesh such as ", p.plans[0].choice.name,
              ", or a place from 1 to ", p.plans.size(), "; --top 0 lists all");
}

std::string command_of(const PrintedPlans& p, const MeshPlan& plan) {
  return p.command + mesh_flags(plan) + "\n" +
         (p.missing.empty() ? "" : "(add " + p.missing + ")\n");
}

}  // namespace

std::string machine_flags(const Machine& m) {
  return string_printf(
      "--memory %.3g --tflops %.3g --efficiency %.3g --nvlink %.3g --network %.3g "
      "--memory-bandwidth %.3g --link-efficiency %.3g --latency %.3g",
      m.memory, m.tflops, m.efficiency, m.nvlink, m.network, m.memory_bandwidth, m.link_efficiency,
      m.latency);
}

std::string printed_plans(const PrintedPlans& p) {
  if (!p.explain.empty() && !p.json) {
    const MeshPlan& plan = mesh_named(p);
    return explained(p, plan) + command_of(p, plan);
  }
  const auto fitting = static_cast<size_t>(std::ranges::count_if(p.plans, &MeshPlan::fits));
  int64_t params = 0;
  for (const GptParameter& parameter : gpt_parameters(p.gpt))
    params += parameter.buffer ? 0
                               : std::accumulate(parameter.shape.begin(), parameter.shape.end(),
                                                 int64_t{1}, std::multiplies<>());
  const size_t shown = p.top == 0
                           ? p.plans.size()
                           : std::min(static_cast<size_t>(p.top), std::max(fitting, size_t{1}));
  if (p.json) {
    Json json{
        {"parameters", params}, {"gpus", p.machine.gpus},  {"machine", machine_flags(p.machine)},
        {"command", p.command}, {"legal", p.plans.size()}, {"fitting", fitting}};
    if (!p.explain.empty()) json["meshes"].push_back(json_of(mesh_named(p), p.gpt));
    for (size_t i = 0; p.explain.empty() && i < shown; ++i)
      json["meshes"].push_back(json_of(p.plans[i], p.gpt));
    return json.dump(1) + "\n";
  }
  std::string text = string_printf(
      "%.4g parameters on %d ranks of %g GiB and %g TFLOP/s: %zu meshes are legal, %zu fit\n\n"
      "%-38s %9s %8s %11s %12s %8s\n",
      static_cast<double>(params), p.machine.gpus, p.machine.memory, p.machine.tflops,
      p.plans.size(), fitting, "mesh", "GiB", "bubble", "ms a step", "tokens/s", "MFU");
  for (size_t i = 0; i < shown; ++i) text += row_of(p.plans[i]);
  if (fitting > 0) return text + "\n" + command_of(p, p.plans[0]);
  const MeshPlan& least =
      *std::ranges::min_element(p.plans, {}, [](const MeshPlan& plan) { return worst(plan).peak; });
  return text + "\nNone fits. The least memory has:\n" + row_of(least);
}

}  // namespace anymesh
