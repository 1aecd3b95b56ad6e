#include <algorithm>
#include <utility>

#include "framework/util/errors.h"
#include "tools/plan/mesh_plan.h"

namespace anymesh {
namespace {

std::vector<int> divisors(int n) {
  std::vector<int> all;
  for (int i = 1; i <= n; ++i)
    if (n % i == 0) all.push_back(i);
  return all;
}

std::string name_of(const Config& config, int dp) {
  const ParallelConfig& mesh = config.parallel;
  const auto size = [](const char* what, int64_t n) { return what + std::to_string(n); };
  return size("tp", mesh.tp) + size("-pp", mesh.pp) + size("-dp", dp) +
         size("-zero", config.engine.zero.stage) + size("-b", config.batch.micro_batch_size) +
         (mesh.ep > 1 ? size("-ep", mesh.ep) : "") + (mesh.whole_experts() ? "-etp1" : "") +
         (mesh.sequence_parallel ? "-sp" : "") +
         (config.engine.activation_checkpointing ? "-recompute" : "");
}

int64_t states_of(const OptimizerConfig& optimizer) {
  if (optimizer.name == "sgd") return optimizer.sgd.momentum != 0;
  return optimizer.name == "lion" ? 1 : 2;
}

class Meshes {
 public:
  Meshes(const Config& config, const GptConfig& model, const FlagTable& table, int gpus)
      : gpt(model), flags(table), ranks(gpus), tried(config) {
    const bool has_experts = gpt.num_experts > 1;
    const std::vector<int> sizes = divisors(ranks), off{0}, both{0, 1}, one{1};
    ParallelConfig& mesh = tried.parallel;
    for_each("tensor-model-parallel-size", mesh.tp, sizes, [&] {
      for_each(
          "pipeline-model-parallel-size", mesh.pp, divisors(std::max(1, ranks / mesh.tp)), [&] {
            for_each("sequence-parallel", mesh.sequence_parallel, mesh.tp > 1 ? both : off, [&] {
              for_each("expert-model-parallel-size", mesh.ep, has_experts ? sizes : one, [&] {
                const bool may_be_whole = has_experts && mesh.sequence_parallel;
                for_each("expert-tensor-parallel-size", mesh.etp, may_be_whole ? both : off,
                         [&] { settings(); });
              });
            });
          });
    });
  }

  std::vector<MeshChoice> choices;
  std::string refused;

 private:
  // Tries the values of a field, or the one that a flag gives.
  template <class Field, class Next>
  void for_each(const char* flag, Field& field, const std::vector<int>& values, const Next& next) {
    if (flags.given(flag)) return next();
    const Field before = field;
    for (const int value : values) {
      field = static_cast<Field>(value);
      next();
    }
    field = before;
  }

  void settings() {
    const Topology mesh = topology();
    const bool has_replicas = mesh.dp_size > 1 || (gpt.num_experts > 1 && mesh.edp_size() > 1);
    for_each("micro-batch-size", tried.batch.micro_batch_size, {1, 2, 4, 8, 16}, [&] {
      if (!is_legal()) return;
      for_each("zero-stage", tried.engine.zero.stage,
               has_replicas ? std::vector{0, 1, 2, 3} : std::vector{0}, [&] {
                 for_each("activation-checkpointing", tried.engine.activation_checkpointing, {0, 1},
                          [&] {
                            if (is_legal()) add();
                          });
               });
    });
  }

  Topology topology() const {
    return tried.parallel.topology(std::max(1, ranks / (tried.parallel.tp * tried.parallel.pp)),
                                   gpt.num_layers);
  }

  bool is_legal() {
    try {
      validate(tried, gpt, ranks);
      return true;
    } catch (const UserError& error) {
      refused = error.what();
      return false;
    }
  }

  void add() {
    const BatchPlan plan = plan_batches(tried, ranks);
    const bool is_half = tried.precision.bf16 || tried.precision.fp16;
    const OffloadConfig& offload = tried.engine.zero.offload;
    choices.push_back({name_of(tried, plan.dp),
                       tried,
                       {.mesh = topology(),
                        .zero_stage = tried.engine.zero.stage,
                        .micro_batches = plan.num_microbatches,
                        .micro_batch_size = tried.batch.micro_batch_size,
                        .element_bytes = is_half ? 2 : 4,
                        .sequence_parallel = tried.parallel.sequence_parallel,
                        .activation_checkpointing = tried.engine.activation_checkpointing,
                        .same_bits = tried.parallel.same_bits,
                        .gradient_bytes = tried.engine.zero.grad_reduce_in_bf16 ? 2 : 0},
                       {.states = states_of(tried.engine.zero.optimizer),
                        .params_on_disk = offload.params_on_disk(),
                        .state_on_disk = offload.optimizer_on_disk()}});
  }

  const GptConfig& gpt;
  const FlagTable& flags;
  const int ranks;
  Config tried;
};

}  // namespace

std::vector<MeshChoice> legal_meshes(const Config& config, const GptConfig& gpt,
                                     const FlagTable& flags, int gpus, std::string& refused) {
  Meshes meshes(config, gpt, flags, gpus);
  refused = meshes.refused;
  return std::move(meshes.choices);
}

}  // namespace anymesh
