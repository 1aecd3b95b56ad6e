#include "tools/plot/trace.h"

#include <algorithm>
#include <cmath>

#include "framework/util/errors.h"
#include "framework/util/input_file.h"
#include "framework/util/json.h"

namespace anymesh {
namespace {

using nlohmann::json;

constexpr std::string_view kFirstLine = "{\"traceEvents\": [", kLastLine = "]}";
constexpr size_t kMostTraced = 4096, kMostPhases = 1'000'000, kMostLabel = 60;
constexpr double kMostMicroseconds = 1e15;

double number_in(const json& event, const char* key) {
  const json value = member(event, key);
  return value.is_number() ? value.get<double>() : -1;
}

void add_phase(const json& event, Trace& trace) {
  const json name = member(event, "name");
  Phase phase{.name = name.is_string() ? name.get<std::string>().substr(0, kMostLabel) : "",
              .begin = number_in(event, "ts")};
  const double duration = number_in(event, "dur"), rank = number_in(event, "pid"),
               micro_batch = number_in(member(event, "args"), "micro_batch");
  phase.end = phase.begin + duration;
  const bool timed = phase.begin >= 0 && duration >= 0 && phase.end < kMostMicroseconds;
  if (!timed || !(rank >= 0 && rank < 1e9) || rank != std::floor(rank))
    throw_error<DamagedFile>("phase '", phase.name, "': ts, dur or pid is no number from 0 on");
  if (micro_batch >= 0 && micro_batch < 1e9) phase.micro_batch = static_cast<int64_t>(micro_batch);
  trace[static_cast<int>(rank)].push_back(phase);
}

Trace read_events(InputFile& file) {
  Trace trace;
  size_t phases = 0, number = 1;
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line) && line != kLastLine) {
    ++number;
    if (line.ends_with(',')) line.pop_back();
    const json event = json::parse(bounded(line, "line " + std::to_string(number)), nullptr, false);
    if (event.is_discarded()) break;
    if (member(event, "cat") != "phase") continue;
    add_phase(event, trace);
    if (++phases > kMostPhases) throw_error<DamagedFile>("has more than ", kMostPhases, " phases");
    if (trace.size() > kMostTraced)
      throw_error<DamagedFile>("has more than ", kMostTraced, " ranks");
  }
  if (line != kLastLine)
    throw_error<DamagedFile>("is no trace from line ", number,
                             " on: expected an event a line, and ", kLastLine, " at the end");
  if (trace.empty()) throw_error<DamagedFile>("has no phases");
  return trace;
}

}  // namespace

bool is_trace(std::string_view start) { return start.starts_with(kFirstLine); }

Trace read_trace(const std::filesystem::path& path) {
  Trace trace;
  naming_memory(path, [&] {
    InputFile file(path);
    try {
      trace = read_events(file);
    } catch (const DamagedFile& error) {
      throw_error<DamagedFile>(path.string(), ": ", error.what());
    }
  });
  for (auto& [rank, phases] : trace)
    std::ranges::stable_sort(phases, [](const Phase& a, const Phase& b) {
      return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
    });
  return trace;
}

}  // namespace anymesh
