#include "framework/checkpoint/expert_ranks.h"

#include "framework/comm/agreement.h"

namespace anymesh {

ExpertSpread expert_spread(const CheckpointedRun& run) {
  std::vector<std::string> mine;  // prefixes and numbers of experts
  for (const ParamSpec& spec : run.stage.params()) {
    if (!spec.experts) continue;
    const std::string prefix = ExpertSpread::prefix_of(spec.name);
    if (!mine.empty() && mine[mine.size() - 2] == prefix) continue;
    mine.insert(mine.end(), {prefix, std::to_string(spec.shape[0])});
  }
  ExpertSpread spread;
  spread.ep_size = run.grid.topology.ep_size;
  spread.whole = run.grid.topology.whole_experts;
  const std::vector<std::string> all = gather_lines(*run.grid.pp, mine);
  for (size_t i = 0; i < all.size(); i += 2)
    spread.layers.push_back({all[i], std::stoll(all[i + 1])});
  return spread;
}

ExpertSpread::Rank expert_rank(const CheckpointedRun& run) {
  const Topology& mesh = run.grid.topology;
  return {mesh.ep_rank_of(run.grid.coord), mesh.edp_rank_of(run.grid.coord), mesh.ep_size,
          mesh.edp_size()};
}

std::string expert_optimizer_file(const CheckpointedRun& run) {
  return expert_optim_states_file(expert_rank(run).ep, run.grid.model->rank());
}

}  // namespace anymesh
