#pragma once

#include <filesystem>

#include "framework/format/dialects/dcp.h"

namespace anymesh {

// Files of torch.save, one of each rank, whose tensors are DTensors, as veRL saves a run of FSDP2:
//
//   model_world_size_4_rank_0.pt   name -> DTensor
//   optim_world_size_4_rank_0.pt   torch.optim's state_dict
//
// A DTensor tells its rank's place in the mesh, and for each dim of the mesh how it cuts: Shard,
// _StridedShard (FSDP on top of tp) or Replicate. Other tensors are rank 0's.
//
// torch.optim numbers the parameters within its groups. States are understood where there is one
// group, with a parameter for each tensor of the model. The last tensors may be second names of
// tied weights. States are also understood where names stand for the numbers. Otherwise
// DcpModel::states_refused says why not.
//
// Throws DamagedFile for a rank's file that is missing, and for parts that do not fit; Unreadable
// for tensors that are to be summed (Partial), and for FSDP1's ShardedTensor.
bool has_dtensor_files(const std::filesystem::path& folder);
DcpModel read_dtensor_files(const std::filesystem::path& folder, RecordChecksums* checks = nullptr);

}  // namespace anymesh
