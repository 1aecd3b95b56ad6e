#include "framework/checkpoint/expert_ranks.h"

namespace anymesh {

ExpertSpread::Rank expert_rank(const CheckpointedRun& run) {
  const Topology& mesh = run.grid.topology;
  return {mesh.ep_rank_of(run.grid.coord), mesh.edp_rank_of(run.grid.coord), mesh.ep_size,
          mesh.edp_size()};
}

std::string expert_optimizer_file(const CheckpointedRun& run) {
  return expert_optim_states_file(expert_rank(run).ep, run.grid.model->rank());
}

}  // namespace anymesh
