#pragma once

#include <string>

#include "framework/format/dialects/dcp.h"

namespace anymesh {

// The states of Megatron-Core's distributed optimizer in a torch_dist folder have one of these
// forms (its metadata's distrib_optim_sharding_type):
//
//   fully_reshardable           those of the ordinary optimizer, where `param` is the master
//   fully_sharded_model_space   up to 0.14: a grid of the ranks' parts, each of them flat.
//                               [512, 48] on two ranks of tensor parallelism is [2, 1, 12288]
//   dp_reshardable              buckets, in which parameters follow one another without names
//   dp_zero_gather_scatter      Python objects, which are refused
//
// Gives the folder's states the names and shapes of the ordinary optimizer's. In a bucket, a rank's
// part of a weight is known by its bits: the masters, rounded, have them at its beginning, in its
// middle and at its end. Where an element of a bucket belongs to no weight, or to one of two, or
// where a part has other states in another bucket, the folder keeps no states, and the result says
// why. Throws DamagedFile for parts that do not fit.
inline constexpr std::string_view kBuckets = "optimizer.distributed.";
std::string name_distributed_states(DcpFolder& folder);

}  // namespace anymesh
