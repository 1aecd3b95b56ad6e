#include "framework/run/run_record.h"

#include <c10/util/Exception.h>

#include <filesystem>

#include "framework/util/format.h"

namespace anymesh {

std::string RunRecord::path_beside(const std::string& loss_csv) {
  namespace fs = std::filesystem;
  if (loss_csv.empty() || (fs::exists(loss_csv) && !fs::is_regular_file(loss_csv))) return "";
  fs::path path = loss_csv;
  path.extension() == ".jsonl" ? path += ".jsonl" : path.replace_extension(".jsonl");
  return path;
}

RunRecord::RunRecord(const std::string& loss_csv, const RecordLine& start)
    : path_(path_beside(loss_csv)) {
  namespace fs = std::filesystem;
  if (path_.empty()) return;
  line_is_open_ = start.at("iteration") > 0 && fs::exists(path_) && fs::file_size(path_) > 0;
  file_.open(path_, line_is_open_ ? std::ios::app : std::ios::trunc);
  TORCH_CHECK(file_, "--loss-csv ", loss_csv, ": cannot open its record ", path_, " for writing");
  add(start);
}

bool RunRecord::add(const RecordLine& line) {
  if (path_.empty()) return true;
  // A text from the system, such as a path, need not be UTF-8.
  file_ << (line_is_open_ ? "\n" : "")
        << line.dump(-1, ' ', false, RecordLine::error_handler_t::replace) << std::endl;
  line_is_open_ = !file_;
  file_.clear();
  return !line_is_open_;
}

RecordLine start_of_record(const Topology& mesh, int64_t iteration) {
  return {
      {"event", "start"},
      {"iteration", iteration},
      {"mesh",
       {{"tp", mesh.tp_size}, {"pp", mesh.pp_size}, {"dp", mesh.dp_size}, {"ep", mesh.ep_size}}}};
}

RecordLine record_of(const StepReport& step, const Metrics& metrics) {
  const auto digits = [](double value) { return string_printf("%.9g", value); };  // as in the CSV
  RecordLine line{{"event", "step"},
                  {"iteration", step.iteration},
                  {"consumed_samples", step.consumed_samples},
                  {"lm_loss", digits(step.lm_loss)},
                  {"learning_rate", step.learning_rate},
                  {"grad_norm", step.grad_norm},
                  {"loss_scale", step.loss_scale},
                  {"tokens_per_s", step.tokens_per_s},
                  {"elapsed_ms", step.elapsed_ms}};
  if (!metrics.empty()) line["metrics"] = record_of(metrics);
  return line;
}

RecordLine record_of(const Metrics& metrics) {
  RecordLine line = RecordLine::object();
  for (const auto& [name, value] : metrics) line[name] = value;
  return line;
}

RecordLine record_of(const SaveReport& save) {
  const SaveTimes& t = save.times;
  return {{"event", "save"},
          {"iteration", save.iteration},
          {"path", save.path.string()},
          {"bytes", save.bytes},
          {"seconds",
           {{"copy", t.copy},
            {"gather", t.gather},
            {"serialise", t.serialise},
            {"write", t.write},
            {"fsync", t.fsync},
            {"commit", t.commit},
            {"stall", t.stall},
            {"total", t.total}}}};
}

RecordLine record_of(const std::vector<TrafficRow>& communication) {
  RecordLine line{{"event", "communication"}, {"rows", RecordLine::array()}};
  for (const auto& [group, verb, mine, most] : communication)
    line["rows"].push_back({{"group", group},
                            {"verb", verb},
                            {"calls", mine.calls},
                            {"bytes", mine.bytes},
                            {"most_calls", most.calls},
                            {"most_bytes", most.bytes}});
  return line;
}

RecordLine record_of(const std::vector<MemoryPart>& memory) {
  RecordLine line{{"event", "memory"}, {"rows", RecordLine::array()}};
  for (const auto& [part, bytes, closed_form] : memory) {
    RecordLine& row = line["rows"].emplace_back(RecordLine{{"part", part}, {"bytes", bytes}});
    if (closed_form >= 0) row["closed_form"] = closed_form;
  }
  return line;
}

}  // namespace anymesh
