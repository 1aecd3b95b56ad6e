#include "framework/checkpoint/save/expert_files.h"

#include <map>

#include "framework/checkpoint/expert_ranks.h"

namespace anymesh {

void write_expert_files(const CheckpointedRun& run, const SaveOptions& options,
                        const ExpertSpread& spread, const std::vector<TensorRecord>& weights,
                        bool first_alone, const WriteFile& write) {
  const ExpertSpread::Rank rank = expert_rank(run);
  std::map<std::string, std::vector<Value::Entry>> files;
  for (size_t i = 0; i < weights.size(); ++i) {
    const ParamSpec& spec = run.stage.params()[i];
    if (!spec.experts || (options.exclude_frozen_parameters && spec.frozen())) continue;
    const int layer = spread.layer_number_of(spec.name);
    const int64_t local = spec.tensor.size(0);
    for (int64_t e = 0; e < local; ++e) {
      const int64_t expert = rank.ep * local + e;
      const int writer = first_alone ? 0 : static_cast<int>((layer + e) % rank.edp_size);
      if (rank.edp == writer)
        files[spread.file_of(spec.name, expert, run.grid.coord.tp)].emplace_back(
            ExpertSpread::key_of(spec.name, expert), unstacked(weights[i], e));
    }
  }
  for (auto& [file, entries] : files) write(file, Value::ordered_dict(std::move(entries)), kAlone);
}

// The first dp rank with this ep rank writes it.
std::optional<std::string> optimizer_file_of_experts(const CheckpointedRun& run) {
  Coord before = run.grid.coord;
  const Topology& mesh = run.grid.topology;
  for (before.dp = 0; before.dp < run.grid.coord.dp; ++before.dp)
    if (mesh.ep_rank_of(before) == expert_rank(run).ep) return std::nullopt;
  return expert_optimizer_file(run);
}

}  // namespace anymesh
