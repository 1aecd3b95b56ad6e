#include "framework/profile/report.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "framework/comm/agreement.h"
#include "framework/format/io.h"
#include "framework/util/format.h"

namespace anymesh {
namespace {

constexpr size_t kOperators = 12, kKernels = 24;  // in the table

struct Total {
  int64_t calls = 0;
  double ms = 0;
};

enum class Kind { Phase, Operator, Kernel };

Kind kind_of(const Span& span) {
  return span.phase ? Kind::Phase : span.kernel ? Kind::Kernel : Kind::Operator;
}

std::map<std::string, Total> totals(const std::vector<Span>& spans, Kind kind) {
  std::map<std::string, Total> by_name;
  for (const Span& span : spans) {
    if (kind_of(span) != kind) continue;
    Total& total = by_name[span.name];
    ++total.calls;
    total.ms += static_cast<double>(span.end - span.begin - span.children) / 1e6;
  }
  return by_name;
}

std::string phase_row(const std::string& name, Total mine, double wall_ms, Communicator& world) {
  torch::Tensor ms = torch::empty({world.size()}, torch::kDouble);  // of every rank
  world.all_gather(ms, torch::full({1}, mine.ms, torch::kDouble));
  const auto mean = ms.mean().item<double>();
  return string_printf("\n%-32s %9.2f %6.1f %9.2f %9.2f %9ld", name.c_str(), mean,
                       100 * mean / wall_ms, ms.min().item<double>(), ms.max().item<double>(),
                       mine.calls);
}

// Drops what kernels' names repeat: the return type, namespaces and arguments.
std::string kernel_name(std::string name) {
  for (const char* noise : {"void ", "at::native::", "anymesh::", "(anonymous namespace)::"})
    for (size_t at; (at = name.find(noise)) != std::string::npos;)
      name.erase(at, std::strlen(noise));
  return name;
}

// Returns rows of the spans with the most time; none if there are none of this kind.
std::string busiest_rows(const std::vector<Span>& spans, Kind kind, const char* title,
                         double wall_ms) {
  const std::map<std::string, Total> all = totals(spans, kind);
  if (all.empty()) return "";
  std::vector<std::pair<std::string, Total>> busiest(all.begin(), all.end());
  std::ranges::sort(busiest, std::greater(), [](const auto& each) { return each.second.ms; });
  busiest.resize(std::min(busiest.size(), kind == Kind::Kernel ? kKernels : kOperators));
  const int width = kind == Kind::Kernel ? 72 : 32;
  std::string rows = string_printf("\n%-*s %9s %6s %9s", width, title, "ms", "%", "calls");
  for (const auto& [name, total] : busiest)
    rows += string_printf("\n%-*.*s %9.2f %6.1f %9ld", width, width,
                          (kind == Kind::Kernel ? kernel_name(name) : name).c_str(), total.ms,
                          100 * total.ms / wall_ms, total.calls);
  return rows;
}

// Writes to a device or a pipe too, which no other file can replace.
void write_whole(const std::filesystem::path& path, const std::string& text) {
  const std::filesystem::path file = std::filesystem::weakly_canonical(path);
  if (!std::filesystem::exists(file) || std::filesystem::is_regular_file(file))
    return write_text_atomically(file, text);
  std::ofstream stream(path);
  stream << text;
  if (!stream.flush()) throw_system_error("write to", path);
}

}  // namespace

std::string table_of(const std::vector<Span>& spans, double wall_ms, Communicator& world) {
  std::map<std::string, Total> phases = totals(spans, Kind::Phase);
  std::vector<std::string> names;
  for (const auto& [name, total] : phases) names.push_back(name);
  names = gather_lines(world, names);
  std::string table = string_printf("%-32s %9s %6s %9s %9s %9s", "phase, ms", "mean", "%", "least",
                                    "most", "calls");
  double rest = wall_ms;
  for (const std::string& name : std::set<std::string>(names.begin(), names.end())) {
    rest -= phases[name].ms;
    table += phase_row(name, phases[name], wall_ms, world);
  }
  table += phase_row("(between them)", {0, rest}, wall_ms, world);
  table += phase_row("the step", {1, wall_ms}, wall_ms, world);
  return table + busiest_rows(spans, Kind::Operator, "operator, rank 0", wall_ms) +
         busiest_rows(spans, Kind::Kernel, "kernel, rank 0", wall_ms);
}

OutputKind trace_kind() { return {"a trace", "{\"traceEvents\": ["}; }

void write_trace(const std::string& path, const std::vector<Span>& spans, Communicator& world) {
  std::vector<std::string> mine;
  for (const Span& span : spans) {
    nlohmann::json event{{"name", span.name},
                         {"cat", span.phase    ? "phase"
                                 : span.kernel ? "kernel"
                                               : "operator"},
                         {"ph", "X"},
                         {"ts", static_cast<double>(span.begin) / 1e3},
                         {"dur", static_cast<double>(span.end - span.begin) / 1e3},
                         {"pid", world.rank()},
                         {"tid", span.kernel ? 1 : 0}};
    if (span.micro_batch >= 0) event["args"]["micro_batch"] = span.micro_batch;
    for (const auto& [dtype, sizes] : span.inputs) {
      event["args"]["Input Dims"].push_back(sizes);
      event["args"]["Input type"].push_back(dtype);
    }
    mine.push_back(event.dump());
  }
  const std::vector<std::string> all = gather_lines(world, mine);
  std::string error;
  if (world.rank() == 0) {
    std::string text = trace_kind().start;
    for (int rank = 0; rank < world.size(); ++rank)
      text += '\n' +
              nlohmann::json{{"name", "process_name"},
                             {"ph", "M"},
                             {"pid", rank},
                             {"args", {{"name", "rank " + std::to_string(rank)}}}}
                  .dump() +
              ',';
    for (const std::string& event : all) text += '\n' + event + ',';
    text.back() = '\n';
    try {
      write_whole(path, text + "]}\n");
    } catch (const std::runtime_error& cause) {
      error = "--trace " + path + ": cannot write it: " + cause.what();
    }
  }
  throw_together(world, error);
}

}  // namespace anymesh
