#pragma once

#include <string>
#include <vector>

#include "framework/comm/communicator.h"
#include "framework/format/folder.h"
#include "framework/profile/profiler.h"

namespace anymesh {

// Returns a table of the phases of `spans`, each without the phases inside it: mean, least and most
// over the ranks, in ms. It also has the rest of `wall_ms`, and rank 0's busiest operators, each
// without the operators inside it, and its busiest kernels. Collective.
std::string table_of(const std::vector<Span>& spans, double wall_ms, Communicator& world);

// The kind of file that --trace may replace.
OutputKind trace_kind();

// Writes the spans of all ranks to `path`, on rank 0, in the Chrome trace format (chrome://tracing,
// ui.perfetto.dev): an event a line, with one process per rank, whose kernels are a thread of their
// own. The args of a phase have the number of its micro-batch, and those of operators and verbs the
// shapes and types of their tensors, by the names that PyTorch's profiler uses. The ranks' clocks
// agree as closely as the ranks left a barrier right before the profiler began. The file is whole
// or as it was:
// throws CollectiveError, with the reason, if it can't be written. Collective.
void write_trace(const std::string& path, const std::vector<Span>& spans, Communicator& world);

}  // namespace anymesh
