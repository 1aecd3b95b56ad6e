#include "framework/checkpoint/load/same_settings.h"

#include <c10/util/StringUtil.h>

#include <algorithm>

#include "framework/checkpoint/args.h"
#include "framework/checkpoint/load/adapter.h"
#include "framework/checkpoint/metadata.h"
#include "framework/format/layout.h"

namespace anymesh {
namespace {

constexpr const char* kTrainingFlags[] = {"clip-grad",  "rampup-batch-size", "bf16",
                                          "fp16",       "loss-scale",        "min-loss-scale",
                                          "hysteresis", "loss-scale-window", "freeze"};
constexpr const char* kDataFlags[] = {"seed", "seq-length", "split", "data-path"};

bool is_number(const Value& value) { return value.is_int() || value.kind() == Value::Kind::kFloat; }

std::string text_of(const Value& value) {
  if (value.kind() == Value::Kind::kBool) return value.as_bool() ? "True" : "False";
  if (is_number(value)) return c10::str(value.as_double());
  if (value.is_string()) return value.as_string();
  if (!value.is_sequence()) return value.found();
  std::vector<std::string> items;
  for (const Value& item : value.items()) items.push_back(text_of(item));
  return c10::Join(value.size() > 0 && value.at(0).is_string() ? " " : ",", items);
}

// Numbers are compared by value, because Python may write 24 or 24.0.
bool same(const Value& a, const Value& b) {
  return is_number(a) && is_number(b) ? a.as_double() == b.as_double() : a == b;
}

struct Difference {
  const Setting& setting;
  Value theirs, ours;
};

// Returns the settings of the checkpoint's arguments that differ, out of those with a flag in
// `flags`.
std::vector<Difference> differences(const Value& metadata, const CheckpointedRun& run,
                                    const std::vector<std::string>& flags) {
  const Value args = args_of(metadata);
  std::vector<Difference> found;
  for (const Setting& setting : run.config.settings) {
    if (std::ranges::find(flags, setting.flag) == flags.end()) continue;
    const Value theirs = single(args.find(setting.dest)), ours = single(value_of(setting.value));
    if (!theirs.is_none() && !same(theirs, ours)) found.push_back({setting, theirs, ours});
  }
  return found;
}

// Returns the flags of the model, and of its adapter unless the checkpoint is of a base alone.
std::vector<std::string> flags_to_compare(const Value& metadata, const CheckpointedRun& run) {
  std::vector<std::string> flags = run.config.model.flags;
  const std::vector<std::string>& adapter = run.config.model.adapter_flags;
  if (!is_base(metadata, run)) flags.insert(flags.end(), adapter.begin(), adapter.end());
  return flags;
}

}  // namespace

void check_same_model(const Value& metadata, const CheckpointedRun& run) {
  for (const auto& [setting, theirs, ours] :
       differences(metadata, run, flags_to_compare(metadata, run))) {
    TORCH_CHECK(!std::holds_alternative<bool>(setting.value), metadata.where(),
                ": the checkpoint was made with ", setting.dest, " = ", text_of(theirs),
                ", this run has ", text_of(ours), "; see --", setting.flag);
    TORCH_CHECK(false, metadata.where(), ": the checkpoint was made with --", setting.flag, " ",
                text_of(theirs), ", this run has ", text_of(ours), "; give --", setting.flag, " ",
                text_of(theirs));
  }
  const Value info = metadata.find(keys::kUniversalInfo).value_or(Value::dict());
  const int64_t vocab_size =
      info.find(keys::kOriginalVocabSize).value_or(run.config.model.vocab_size).as_int();
  TORCH_CHECK(vocab_size == run.config.model.vocab_size, metadata.where(),
              ": the checkpoint's vocabulary has ", vocab_size, " entries, this run's ",
              run.config.model.vocab_size, "; see --tokenizer-type, --vocab-file and --vocab-size");
}

void check_same_bits(const Value& metadata, const CheckpointedRun& run) {
  for (const auto& [setting, theirs, ours] : differences(metadata, run, {"same-bits"}))
    TORCH_CHECK(false, metadata.where(), ": the checkpoint's run had --same-bits ", text_of(theirs),
                ", this one has ", text_of(ours), ", so its bits would differ; give --same-bits ",
                text_of(theirs), ", or --override-same-bits to go on with ", text_of(ours));
}

void check_same_schedule(const Value& metadata, const LrSchedule& schedule) {
  const Value saved = metadata.at(keys::kLrScheduler);
  if (!saved) return;
  const std::pair<const char*, Value> expected[] = {{"max_lr", schedule.max_lr},
                                                    {"min_lr", schedule.min_lr},
                                                    {"lr_warmup_steps", schedule.warmup_samples},
                                                    {"lr_decay_steps", schedule.decay_samples},
                                                    {"lr_decay_style", schedule.style},
                                                    {kWsdDecaySteps, schedule.wsd_decay_samples},
                                                    {kWsdDecayStyle, schedule.wsd_decay_style}};
  std::string differences;
  for (const auto& [key, ours] : expected) {
    const std::string_view name = key;
    const bool unused = schedule.factor ? name != "max_lr" && name != "lr_decay_style"
                                        : schedule.style == "constant" &&
                                              (name == "min_lr" || name == "lr_decay_steps");
    const Value theirs = saved.find(key);
    if (unused || !theirs || same(theirs, ours)) continue;
    differences +=
        c10::str("\n  ", key, ": checkpoint ", text_of(theirs), ", this run ", text_of(ours));
  }
  TORCH_CHECK(
      differences.empty(), metadata.where(),
      ": the learning-rate schedule differs (warmup and decay are in samples):", differences,
      "\nGive the flags of the checkpoint's run (--lr --min-lr --lr-decay-style --lr-decay-iters "
      "--lr-warmup-iters --global-batch-size); or --use-checkpoint-opt_param-scheduler to go on "
      "with the checkpoint's, --override-opt_param-scheduler with this run's, --no-load-lr-state "
      "to start afresh.");
}

std::vector<std::string> announce_settings(const Value& metadata, const CheckpointedRun& run) {
  std::vector<std::string> flags = run.config.model.training_flags, lines;
  flags.insert(flags.end(), std::begin(kTrainingFlags), std::end(kTrainingFlags));
  if (!metadata.find(keys::kDataOrder))
    flags.insert(flags.end(), std::begin(kDataFlags), std::end(kDataFlags));
  for (const auto& [setting, theirs, ours] : differences(metadata, run, flags))
    lines.push_back(c10::str("the checkpoint's run had ", setting.dest, " = ", text_of(theirs),
                             "; this one goes on with ", text_of(ours), ", as its flags say (--",
                             setting.flag, ")"));
  return lines;
}

std::string announce_batch_size(const Value& metadata, const CheckpointedRun& run) {
  const int64_t ours = run.config.global_batch_size,
                theirs = args_of(metadata).find("global_batch_size").value_or(ours).as_int();
  if (theirs == ours) return "";
  return c10::str("global batch size ", theirs, " -> ", ours,
                  ": samples go on where they stopped, in the same order. With --train-iters there "
                  "are more or fewer in all");
}

}  // namespace anymesh
