#include <algorithm>
#include <set>

#include "framework/config/command_line.h"
#include "framework/config/parse.h"
#include "framework/util/errors.h"
#include "framework/util/format.h"
#include "framework/util/shell_word.h"
#include "models/gpt/gpt_comm_form.h"
#include "tools/report/html.h"
#include "tools/report/sections.h"

namespace anymesh {
namespace {

using Key = std::pair<std::string, std::string>;  // group and verb

// The closed form of a run, or the reason why there is none.
struct RunForm {
  std::vector<CommForm> stages;
  int dp = 1;
  bool parts_differ = false;  // between dp ranks, in tp's all-reduce
  std::string refusal;
};

// Keeps the sums below 2^63, whatever the flags are.
void check_size(const GptConfig& gpt, const Config& config, const Topology& mesh) {
  const double h = gpt.hidden_size, layers = gpt.num_layers,
               tokens = double(config.batch.micro_batch_size) * gpt.seq_length,
               batch = config.batch.global_batch_size,
               table = h * (padded_vocab_size(gpt, mesh.tp_size) + gpt.max_position_embeddings),
               params = layers * h * (4 * h + 4.0 * gpt.ffn_size()) + table;
  if (layers > 1e5 || 1e3 * (tokens * h * layers + params) * (batch + 1) * mesh.dp_size > 9e18)
    throw_error("the run is too large for it");
}

RunForm form_of(const TrainingLog& log) {
  RunForm form;
  try {
    const Topology& mesh = log.mesh;
    if (double(mesh.tp_size) * mesh.pp_size * mesh.dp_size > 1e6 || mesh.tp_size < 1 ||
        mesh.pp_size < 1 || mesh.dp_size < 1)
      throw_error("the log has no mesh of up to a million ranks");
    Config config;
    GptConfig gpt;
    FlagTable flags("pretrain_gpt", "");
    add_flags(flags, config);
    add_flags(flags, gpt);
    for (const auto& [name, value] : log.flags)
      read_command_line(flags, shell_words(name + " " + value));
    gpt.vocab_size = log.vocabulary;
    validate(config, gpt, mesh.world_size());
    if (!config.engine.freeze.empty()) throw_error("some parameters are frozen");
    if (!config.batch.rampup_batch_size.empty()) throw_error("its batches grow");
    if (!config.run.deepspeed_config.empty() && config.batch.global_batch_size == 0)
      throw_error("the log does not say how many micro-batches a step has");
    check_size(gpt, config, mesh);
    const StepShape step{.mesh = config.parallel.topology(mesh.dp_size),
                         .zero_stage = config.engine.zero.stage,
                         .micro_batches = plan_batches(config, mesh.world_size()).num_microbatches,
                         .micro_batch_size = config.batch.micro_batch_size,
                         .element_bytes = config.precision.bf16 || config.precision.fp16 ? 2 : 4,
                         .sequence_parallel = config.parallel.sequence_parallel,
                         .activation_checkpointing = config.engine.activation_checkpointing};
    for (int pp = 0; pp < mesh.pp_size; ++pp) form.stages.push_back(comm_form(gpt, step, pp));
    form.dp = mesh.dp_size;
    form.parts_differ = step.sequence_parallel && step.zero_stage > 0 && mesh.dp_size > 1;
  } catch (const std::exception& error) {
    form.refusal = error.what();
  }
  return form;
}

CommSum of_rank(const RunForm& form, size_t stage, const Key& key) {
  const auto found = form.stages[stage].find(key);
  if (found == form.stages[stage].end()) return {};
  return {found->second.calls / form.dp, found->second.bytes / form.dp};
}

CommSum of_busiest(const RunForm& form, const Key& key) {
  CommSum most;
  for (size_t stage = 0; stage < form.stages.size(); ++stage) {
    const CommSum sum = of_rank(form, stage, key);
    most = {std::max(most.calls, sum.calls), std::max(most.bytes, sum.bytes)};
  }
  return most;
}

std::string calls_text(int64_t calls) {
  return std::to_string(calls) + (calls == 1 ? " call" : " calls");
}

// A count beside its closed form, if there is one.
std::string cell(const CommSum& counted, const CommSum* form, bool average) {
  std::string text =
      calls_text(counted.calls) + element("small", std::to_string(counted.bytes) + " B");
  if (!form) return text;
  if (counted.calls == form->calls && counted.bytes == form->bytes)
    return text + "<small class=\"good\">= closed form</small>";
  const std::string bytes = std::to_string(form->bytes) + " B";
  if (average && counted.calls == form->calls)
    return text + element("small", "closed form " + bytes + " on average over dp");
  return text + element("small", "closed form " + calls_text(form->calls) + ", " + bytes,
                        "class=\"warn\"");
}

struct CountedRun {
  const TrainingLog* log = nullptr;
  RunForm form;
};

// Returns the cell of a run for rank 0 or the busiest rank.
std::string cell_of(const CountedRun& run, const Key& key, bool busiest) {
  CommSum counted, expected;
  for (const TrainingLog::Traffic& row : run.log->traffic)
    if (Key{row.group, row.verb} == key)
      counted = busiest ? CommSum{row.most_calls, row.most_bytes} : CommSum{row.calls, row.bytes};
  const bool has_form = run.form.refusal.empty();
  if (has_form) expected = busiest ? of_busiest(run.form, key) : of_rank(run.form, 0, key);
  if (counted.calls == 0 && expected.calls == 0) return "&ndash;";
  return cell(counted, has_form ? &expected : nullptr,
              run.form.parts_differ && key == Key{"tp", "all_reduce"});
}

// Adds a row for rank 0 and one for the busiest rank; one for both if they are the same.
void add_rows(HtmlTable& table, const std::vector<CountedRun>& runs, const Key& key) {
  std::vector<std::string> first, busiest;
  for (const CountedRun& run : runs) {
    first.push_back(cell_of(run, key, false));
    busiest.push_back(cell_of(run, key, true));
  }
  const auto add = [&](const char* rank, std::vector<std::string> cells) {
    const std::string name = escaped(key.first + " " + key.second);
    cells.insert(cells.begin(), name + element("small", rank));
    table.add(cells);
  };
  if (first == busiest) return add("rank 0, busiest rank", first);
  add("rank 0", first);
  add("busiest rank", busiest);
}

}  // namespace

std::string communication_section(const RunFolder& folder) {
  const auto places =
      runs_with(folder, [](auto& run) { return run.log && run.log->reports_traffic; });
  if (places.empty())
    return section("Communication", "",
                   absent("No log has it: train with <code>--report-comm</code>."));
  std::set<Key> keys;
  std::vector<CountedRun> runs;
  std::string remarks;
  for (const size_t place : places) {
    const TrainingLog& log = *folder.runs[place].log;
    const RunForm& form = runs.emplace_back(CountedRun{&log, form_of(log)}).form;
    for (const TrainingLog::Traffic& row : log.traffic) keys.emplace(row.group, row.verb);
    for (const CommForm& stage : form.stages)
      for (const auto& [key, sum] : stage) keys.insert(key);
    if (!form.refusal.empty())
      remarks += absent("No closed form for " + escaped(folder.runs[place].name) + ": " +
                        escaped(form.refusal) + ".");
  }
  HtmlTable table(run_columns("group, collective", folder, places));
  for (const Key& key : keys) add_rows(table, runs, key);
  return section("Communication",
                 "Calls and bytes of payload in the last step, beside the closed form that the "
                 "flags give.",
                 (keys.empty() ? absent("A step communicates nothing.") : table.html()) + remarks);
}

}  // namespace anymesh
