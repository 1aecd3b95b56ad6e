#pragma once

#include <string>
#include <vector>

#include "framework/checkpoint/format/claimed_output.h"
#include "framework/comm/communicator.h"
#include "framework/profile/profiler.h"

namespace anymesh {

// Collective: a table of the phases of `spans`, each without the phases inside it, as the mean, the
// least and the most of the ranks, in ms; what is left of `wall_ms`; and rank 0's busiest
// operators, each without the operators inside it.
std::string table_of(const std::vector<Span>& spans, double wall_ms, Communicator& world);

// What --trace may replace: a trace.
OutputKind trace_kind();

// Collective: rank 0 writes the spans of all ranks to `path`, a process a rank, in the Chrome trace
// format (chrome://tracing, ui.perfetto.dev). The ranks' clocks are as near to each other as their
// leaving of a barrier right before the profiler began. Throws CollectiveError if the file can't be
// written.
void write_trace(const std::string& path, const std::vector<Span>& spans, Communicator& world);

}  // namespace anymesh
