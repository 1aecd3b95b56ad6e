#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>

#include "framework/comm/communicator.h"

namespace anymesh {

// Counts the bytes that a rank's groups move, in front of any transport.
//
//   CommCounts counts;
//   const ProcessGrid grid(world, topology, &counts);   names and counts its groups
//   counts.groups["dp"][kReduceScatter].bytes
//
// The payload of a call, in bytes, on every rank:
//
//   all_reduce       the tensor
//   reduce_scatter   the input: the parts of all ranks
//   all_gather       the output: the parts of all ranks
//   all_to_all       the tensor that this rank sends, with the part that it keeps
//   exchange         each tensor that this rank sends, as a call; what it receives is not counted
//   broadcast        the tensor
//
// In a group of n ranks, a rank sends on average 2 (n - 1) / n times the payload of an all-reduce
// and (n - 1) / n times the payload of a reduce-scatter or all-gather. This is why papers count
// them as 2, 1 and 1. A group of one rank sends nothing and is not counted, nor are barriers and
// splits. A counted verb is also a phase to a profiler (profile/profiler.h): "dp reduce_scatter".
enum Verb { kAllReduce, kReduceScatter, kAllGather, kAllToAll, kExchange, kBroadcast, kVerbs };
constexpr const char* kVerbNames[kVerbs] = {"all_reduce", "reduce_scatter", "all_gather",
                                            "all_to_all", "exchange",       "broadcast"};

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

// Returns the same group, counted under this name; the group itself if `counts` is null.
CommPtr counted(CommPtr group, const std::string& name, CommCounts* counts);

// The traffic of rank 0 and of the busiest rank, for a verb of a group.
struct TrafficRow {
  std::string group, verb;
  Traffic mine, most;
};

// Returns a row for each verb that some rank used. Collective over `world`.
std::vector<TrafficRow> traffic_rows(const CommCounts& counts, Communicator& world);
std::string table_of(const std::vector<TrafficRow>& rows);

}  // namespace anymesh
