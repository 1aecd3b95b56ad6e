#include "tools/report/trace.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "framework/util/errors.h"
#include "framework/util/format.h"
#include "framework/util/input_file.h"
#include "tools/plot/svg.h"
#include "tools/report/html.h"

namespace anymesh {
namespace {

constexpr size_t kMostRanks = 4096, kMostPhases = 1'000'000, kMostRows = 64, kMostLabel = 60;
constexpr double kMostMicroseconds = 1e15;

// Takes the phases out of the file as it is parsed, so that memory does not grow with operators.
class TraceReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit TraceReader(Trace& trace) : trace_(trace) {}
  std::string error;

  bool null() override { return number(-1); }
  bool boolean(bool) override { return number(-1); }
  bool number_integer(int64_t value) override { return number(static_cast<double>(value)); }
  bool number_unsigned(uint64_t value) override { return number(static_cast<double>(value)); }
  bool number_float(double value, const std::string&) override { return number(value); }
  bool binary(binary_t&) override { return true; }
  bool string(std::string& value) override {
    if (depth_ == kEvent && key_ == "name") name_ = value.substr(0, kMostLabel);
    if (depth_ == kEvent && key_ == "cat") phase_ = value == "phase";
    return true;
  }
  bool key(std::string& key) override {
    key_ = key.substr(0, kMostLabel);
    if (depth_ == 1) in_events_ = key_ == "traceEvents";
    return true;
  }
  bool start_object(size_t) override {
    if (++depth_ != kEvent) return true;
    phase_ = false;
    name_.clear();
    begin_ = duration_ = rank_ = -1;
    return true;
  }
  bool end_object() override { return --depth_ != kEvent - 1 || !phase_ || !in_events_ || add(); }
  bool start_array(size_t) override { return ++depth_, true; }
  bool end_array() override { return --depth_, true; }
  bool parse_error(size_t at, const std::string&, const nlohmann::json::exception&) override {
    error = "is no JSON from byte " + std::to_string(at) + " on";
    return false;
  }

 private:
  static constexpr int kEvent = 3;  // the depth inside {"traceEvents": [{

  bool number(double value) {
    if (depth_ != kEvent) return true;
    if (key_ == "ts") begin_ = value;
    if (key_ == "dur") duration_ = value;
    if (key_ == "pid") rank_ = value;
    return true;
  }

  bool add() {
    const bool timed = begin_ >= 0 && duration_ >= 0 && begin_ + duration_ < kMostMicroseconds;
    if (!timed || !(rank_ >= 0 && rank_ < 1e9) || rank_ != std::floor(rank_))
      error = "phase '" + name_ + "': ts, dur or pid is no number from 0 on";
    else if (++phases_ > kMostPhases)
      error = "has more than " + std::to_string(kMostPhases) + " phases";
    else
      trace_.ranks[static_cast<int>(rank_)].push_back({name_, begin_, begin_ + duration_});
    if (trace_.ranks.size() > kMostRanks)
      error = "has more than " + std::to_string(kMostRanks) + " ranks";
    return error.empty();
  }

  Trace& trace_;
  int depth_ = 0;
  size_t phases_ = 0;
  bool in_events_ = false, phase_ = false;
  std::string key_, name_;
  double begin_ = -1, duration_ = -1, rank_ = -1;
};

// Sorts a rank's phases and counts those around each.
void nest(std::vector<Phase>& phases) {
  std::ranges::stable_sort(phases, [](const Phase& a, const Phase& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
  });
  std::vector<double> ends;  // of the phases around the next one
  for (Phase& phase : phases) {
    while (!ends.empty() && ends.back() <= phase.begin) ends.pop_back();
    phase.depth = static_cast<int>(std::min<size_t>(ends.size(), 3));
    ends.push_back(phase.end);
  }
}

// Phases that a reader tells apart by colour, in the order of the key.
constexpr const char* kKinds[] = {"forward", "backward", "tp",        "pp",
                                  "dp",      "world",    "optimizer", "other"};

size_t kind_of(const std::string& name) {
  const std::string first = name.substr(0, name.find(' '));
  if (first == "model" || first == "embedding") return 5;  // groups that span stages
  if (first == "gradients") return 6;
  const auto kind = std::ranges::find(kKinds, first);
  return std::min<size_t>(kind - std::begin(kKinds), std::size(kKinds) - 1);
}

constexpr const char* kKindLabels[] = {
    "forward",
    "backward",
    "tensor parallel communication",
    "pipeline: exchange, and waiting for it",
    "data parallel communication",
    "communication across stages",
    "gradients and optimizer",
    "other",
};

constexpr double kWide = 1000, kHigh = 26;  // the units of a row

std::string lane(const Trace& trace, const std::vector<Phase>& phases) {
  std::string svg;
  const double scale = kWide / std::max(trace.end - trace.begin, 1e-3);
  double drawn[4] = {-1, -1, -1, -1};  // the right end of each depth's last rectangle
  for (const Phase& phase : phases) {
    const double x = (phase.begin - trace.begin) * scale, right = (phase.end - trace.begin) * scale,
                 inset = 4.0 * phase.depth;
    if (right - drawn[phase.depth] < 0.25) continue;  // nothing that can be seen
    drawn[phase.depth] = right;
    svg += string_printf("<rect x=\"%.2f\" y=\"%.0f\" width=\"%.2f\" height=\"%.0f\" class=\"", x,
                         inset, std::max(right - x, 0.4), kHigh - 2 * inset) +
           series(kind_of(phase.name)) + "\"><title>" + escaped(phase.name) +
           string_printf(", %.3f ms from %.3f</title></rect>\n", (phase.end - phase.begin) / 1e3,
                         (phase.begin - trace.begin) / 1e3);
  }
  return string_printf(
             "<svg viewBox=\"0 0 %.0f %.0f\" preserveAspectRatio=\"none\" role=\"img\" "
             "aria-label=\"phases\">\n",
             kWide, kHigh) +
         svg + "</svg>";
}

}  // namespace

bool is_trace(std::string_view start) {
  const size_t brace = start.find_first_not_of(" \t\r\n");
  return brace != std::string_view::npos && start[brace] == '{' &&
         start.substr(0, 200).find("\"traceEvents\"") != std::string_view::npos;
}

Trace read_trace(const std::filesystem::path& path) {
  Trace trace{.path = path};
  TraceReader reader(trace);
  naming_memory(path, [&] {
    InputFile file(path);
    return nlohmann::json::sax_parse(file, &reader);
  });
  if (!reader.error.empty()) throw_error<DamagedFile>(path.string(), ": ", reader.error);
  if (trace.ranks.empty()) throw_error<DamagedFile>(path.string(), ": has no phases");
  trace.begin = INFINITY;
  for (auto& [rank, phases] : trace.ranks) {
    nest(phases);
    trace.begin = std::min(trace.begin, phases.front().begin);
    for (const Phase& phase : phases) trace.end = std::max(trace.end, phase.end);
  }
  return trace;
}

std::string timeline_html(const Trace& trace) {
  std::string rows;
  size_t count = 0;
  std::set<size_t> kinds;
  for (const auto& [rank, phases] : trace.ranks) {
    if (++count > kMostRows) break;
    for (const Phase& phase : phases) kinds.insert(kind_of(phase.name));
    rows += element("div", element("span", "rank " + std::to_string(rank)) + lane(trace, phases),
                    "class=\"lane\"") +
            "\n";
  }
  const double ms = (trace.end - trace.begin) / 1e3;
  const std::string ruler = element("span", "0 ms") +
                            element("span", string_printf("%.3g ms", ms / 2)) +
                            element("span", string_printf("%.3g ms", ms));
  rows +=
      element("div", "<span></span>" + element("div", ruler, "class=\"ruler\""), "class=\"lane\"");
  std::string key;
  for (const size_t kind : kinds) key += element("li", swatch(series(kind)) + kKindLabels[kind]);
  if (trace.ranks.size() > kMostRows)
    rows += absent("ranks drawn: " + std::to_string(kMostRows) + " of " +
                   std::to_string(trace.ranks.size()));
  return element("div", element("ul", key, "class=\"key\"") + rows, "class=\"timeline\"") + "\n";
}

}  // namespace anymesh
