#pragma once

#include "framework/format/dialects/dcp.h"

namespace anymesh {

// Megatron-FSDP's format, fsdp_dtensor, is a folder of torch.distributed.checkpoint. Its names have
// the wrappers' `module`, gated units are in two halves, and settings belong to parameters:
//
//   model.module.decoder.layers.0.mlp.linear_fc1.weight_w, ..._v
//   optimizer.state.module.module.decoder.layers.0.mlp.linear_fc1.weight_w.exp_avg
//   optimizer.param_to_group_meta.module.module.decoder.layers.0.mlp.linear_fc1.weight.lr
bool is_megatron_fsdp(const DcpFolder& folder);

// Returns the model with the names that torch_dist has (torch_dist.h), and whole units.
DcpModel megatron_fsdp_model(const DcpFolder& folder);

}  // namespace anymesh
