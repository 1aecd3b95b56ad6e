#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>

#include "framework/comm/communicator.h"

namespace anymesh {

// What a rank's groups move, counted in front of the transport, whichever that is.
//
//   CommCounts counts;
//   const ProcessGrid grid(world, topology, &counts);   names its groups and counts them
//   counts.groups["dp"][kReduceScatter].bytes
//
// The payload of a call, in bytes, is on every rank
//
//   all_reduce       the tensor
//   reduce_scatter   the input: the parts of all ranks
//   all_gather       the output: the parts of all ranks
//   exchange         what this rank sends; a call that only receives is not counted
//   broadcast        the tensor
//
// Over a group of n ranks a rank then sends, on average, 2 (n - 1) / n times an all-reduce's
// payload and (n - 1) / n times a reduce-scatter's or all-gather's, which is why papers count them
// as 2, 1 and 1. A group of one rank sends nothing and is not counted, nor are barriers and splits.
// A verb that is counted is also a phase to a profiler (profile/profiler.h): "dp reduce_scatter".
enum Verb { kAllReduce, kReduceScatter, kAllGather, kExchange, kBroadcast, kVerbs };
constexpr const char* kVerbNames[kVerbs] = {"all_reduce", "reduce_scatter", "all_gather",
                                            "exchange", "broadcast"};

struct Traffic {
  int64_t calls = 0, bytes = 0;
  bool operator==(const Traffic&) const = default;
};

struct CommCounts {
  std::map<std::string, std::array<Traffic, kVerbs>> groups;

  void reset() {
    for (auto& [name, traffic] : groups) traffic = {};
  }
};

// The same group, counted under this name; the group itself if `counts` is null.
CommPtr counted(CommPtr group, const std::string& name, CommCounts* counts);

// Collective over `world`: a table of what rank 0 and the busiest rank moved, per group and verb.
std::string table_of(const CommCounts& counts, Communicator& world);

}  // namespace anymesh
