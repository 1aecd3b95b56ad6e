#pragma once

#include "framework/format/dialects/dcp.h"
#include "framework/format/io/write_files.h"

namespace anymesh {

// Megatron-Core's torch_dist is a folder of torch.distributed.checkpoint with three things of its
// own: all layers of a stage are stacked in one tensor, common.pt has what ranks do not cut (the
// optimizer's groups and step), and the optimizer's states are named state first.
inline constexpr const char* kTorchDistCommon = "common.pt";

// Whether the folder is of Megatron-Core.
bool is_torch_dist(const std::filesystem::path& folder);

// Returns the model of such a folder. Gives each layer its tensors, under the names of
// Megatron-Core's modules, and the optimizer its groups and step:
//
//   decoder.layers.mlp.linear_fc1.weight [L, ...]  decoder.layers.0.mlp.linear_fc1.weight [...]
//
// common.pt does not name the groups' parameters. Megatron-Core puts vectors in the group without
// weight decay and all others in the other one. More groups are not told apart: then the model has
// none. The ordinary optimizer's states are known, and the distributed one's
// (distributed_optimizer.h).
DcpModel torch_dist_model(DcpFolder folder);

// Returns the files of such a folder, for dist_checkpointing.load() on any mesh. `model` has the
// names of Megatron-Core's modules. Weights are the masters, as a run in fp32 saves them. Throws
// Unreadable if the layers are not alike.
std::vector<StreamedFile> torch_dist_files(const std::filesystem::path& folder,
                                           const DcpModel& model, int64_t iteration);

}  // namespace anymesh
