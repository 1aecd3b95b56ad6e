#include "framework/format/reshard/layer_files.h"

#include "framework/format/sharded/stages.h"
#include "framework/format/sharded/tensor_views.h"
#include "framework/format/torch_file/torch_file.h"

namespace anymesh {
namespace {

// Stages may share a parameter; the first of them saved the layer's file.
std::map<std::string, TensorRecord> masters_of(const std::vector<RankModel>& ranks, int tp_rank) {
  std::map<std::string, TensorRecord> masters;
  for (const RankModel& rank : ranks) {
    if (rank.tp_rank != tp_rank) continue;
    for (const RankModel::Group& group : rank.groups)
      for (const RankModel::Parameter& parameter : group.parameters)
        masters.emplace(parameter.name, parameter.states.find(kFp32State)->second);
  }
  return masters;
}

}  // namespace

std::vector<std::pair<std::string, Value>> recast_layer_files(const ShardedCheckpoint& source,
                                                              const std::vector<RankModel>& ranks,
                                                              DType to, int threads,
                                                              RecordChecksums& checks) {
  const DType from = mesh_of(source).dtype;
  const std::set<std::string> buffers = buffer_names(source);
  std::vector<std::pair<std::string, Value>> files;
  for (int tp = 0; tp < source.tp_size; ++tp) {
    const std::map<std::string, TensorRecord> masters = masters_of(ranks, tp);
    for (const auto& [path, full_names] : layer_names(source, tp, threads, &checks)) {
      Value contents = read_torch_file(path, &checks);
      for (const auto& [within, name] : full_names) {
        const TensorRecord tensor = contents.at(within).as_tensor();
        const auto master = masters.find(name);
        if (tensor.dtype == from && !buffers.contains(name))
          contents.set(within, rounded(master == masters.end() ? tensor : master->second, to));
      }
      files.emplace_back(path.filename(), contents);
    }
  }
  return files;
}

}  // namespace anymesh
