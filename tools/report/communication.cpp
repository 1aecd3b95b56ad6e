#include <algorithm>
#include <map>
#include <set>

#include "framework/util/errors.h"
#include "models/gpt/gpt_comm_form.h"
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

bool is_on_nccl(const RecordedRun& run) {
  return std::ranges::any_of(run.facts, [](const auto& fact) {
    return fact.first == "device" && fact.second.ends_with(", by nccl");
  });
}

RunForm form_of(const RecordedRun& run) {
  RunForm form;
  try {
    const auto [config, gpt, plan] = settings_of(run);
    if (!config.engine.freeze.empty()) throw_error("some parameters are frozen");
    if (!config.batch.rampup_batch_size.empty()) throw_error("its batches grow");
    check_size(gpt, config, run.mesh);
    const StepShape step{.mesh = config.parallel.topology(run.mesh.dp_size, gpt.num_layers),
                         .zero_stage = config.engine.zero.stage,
                         .micro_batches = plan.num_microbatches,
                         .micro_batch_size = config.batch.micro_batch_size,
                         .element_bytes = config.precision.bf16 || config.precision.fp16 ? 2 : 4,
                         .sequence_parallel = config.parallel.sequence_parallel,
                         .activation_checkpointing = config.engine.activation_checkpointing,
                         .same_bits = config.parallel.same_bits,
                         .gradient_bytes = config.engine.zero.grad_reduce_in_bf16 ? 2
                                           : is_on_nccl(run)                      ? 4
                                                                                  : 0};
    for (int pp = 0; pp < run.mesh.pp_size; ++pp) form.stages.push_back(comm_form(gpt, step, pp));
    form.dp = run.mesh.dp_size;
    form.parts_differ = step.sequence_parallel && step.zero_stage > 0 && run.mesh.dp_size > 1;
  } catch (const std::exception& error) {
    form.refusal = error.what();
  }
  return form;
}

// Returns the closed form's sum of rank 0 or of the busiest rank.
CommSum sum_of(const RunForm& form, const Key& key, bool busiest) {
  CommSum most;
  for (const CommForm& stage : form.stages) {
    const auto found = stage.find(key);
    const CommSum sum = found == stage.end() ? CommSum() : found->second;
    most = {std::max(most.calls, sum.calls / form.dp), std::max(most.bytes, sum.bytes / form.dp)};
    if (!busiest) break;
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

// Returns the cell of a run for rank 0 or the busiest rank.
std::string cell_of(const RecordedRun& run, const RunForm& form, const Key& key, bool busiest) {
  CommSum counted, expected;
  for (const RecordedRun::Traffic& row : *run.traffic)
    if (Key{row.group, row.verb} == key)
      counted = busiest ? CommSum{row.most_calls, row.most_bytes} : CommSum{row.calls, row.bytes};
  const bool has_form = form.refusal.empty();
  if (has_form) expected = sum_of(form, key, busiest);
  if (counted.calls == 0 && expected.calls == 0) return "";
  return cell(counted, has_form ? &expected : nullptr,
              form.parts_differ && key == Key{"tp", "all_reduce"});
}

}  // namespace

ReportSection communication_section(const RunFolder& folder) {
  const auto runs =
      runs_with(folder, [](const Run& run) { return run.record && run.record->traffic; });
  if (runs.empty())
    return absent_section("Communication",
                          "No record has it: train with <code>--report-comm</code>.");
  std::set<Key> keys;
  std::map<const Run*, RunForm> forms;
  std::string remarks;
  for (const Run* run : runs) {
    const RunForm& form = forms[run] = form_of(*run->record);
    for (const RecordedRun::Traffic& row : *run->record->traffic) keys.emplace(row.group, row.verb);
    for (const CommForm& stage : form.stages)
      for (const auto& [key, sum] : stage) keys.insert(key);
    if (!form.refusal.empty())
      remarks +=
          absent("No closed form for " + escaped(run->name) + ": " + escaped(form.refusal) + ".");
  }
  HtmlTable table(row_of("group, collective", runs, run_heading));
  for (const Key& key : keys) {
    const auto row = [&](const std::string& rank, bool busiest) {
      return row_of(
          escaped(key.first + " " + key.second) + element("small", rank), runs,
          [&](const Run& run) { return cell_of(*run.record, forms[&run], key, busiest); });
    };
    const auto first = row("rank 0", false), busiest = row("busiest rank", true);
    const bool same = std::equal(first.begin() + 1, first.end(), busiest.begin() + 1);
    table.add(same ? row("rank 0, busiest rank", false) : first);
    if (!same) table.add(busiest);
  }
  return {
      "Communication",
      "Calls and bytes of payload in the last step, beside the closed form that the flags give.",
      (keys.empty() ? absent("A step communicates nothing.") : table.html()) + remarks};
}

}  // namespace anymesh
