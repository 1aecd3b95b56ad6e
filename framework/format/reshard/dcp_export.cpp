#include "framework/format/reshard/dcp_export.h"

#include <chrono>
#include <cstring>
#include <set>

#include "framework/format/dialects/dcp_writer.h"
#include "framework/format/folder/kinds.h"
#include "framework/format/reshard/uncut_model.h"
#include "framework/format/sharded/source_files.h"
#include "framework/format/torch_file/record_checksums.h"
#include "framework/format/whole/fp32_export.h"
#include "framework/util/stopwatch.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

// A checkpoint, and its optimizer if it has one.
struct Uncut {
  Checkpoint checkpoint;
  std::optional<UncutModel> model;
};

Uncut open_uncut(const fs::path& input, int threads, RecordChecksums& checks) {
  Uncut source;
  std::shared_ptr<const ShardedCheckpoint> ranks;
  if (checkpoint_kind(input) == Checkpoint::Kind::kOrdinary)
    ranks =
        std::make_shared<const ShardedCheckpoint>(open_sharded_checkpoint(input, threads, &checks));
  source.checkpoint = ranks ? checkpoint_of(ranks) : open_checkpoint(input, threads, &checks);
  require_states(input, source.checkpoint.states_refused, "zero_to_fp32 exports the weights alone");
  if (source.checkpoint.optimizer_state) source.model = uncut_model(source.checkpoint, ranks.get());
  return source;
}

// Returns the step as torch's optimizers keep it.
TensorRecord step_tensor(const Value& step) {
  if (step.is_tensor()) return step.as_tensor();
  const auto number = static_cast<float>(step.as_double());
  std::vector<std::byte> bytes(sizeof number);
  std::memcpy(bytes.data(), &number, sizeof number);
  return {DType::kFloat32, {}, false, std::make_shared<OwnedBytes>(std::move(bytes))};
}

// Returns a group's settings for torch's optimizer that has such states.
Value torch_settings(const Value& given, const SavedParameter& parameter) {
  Value settings = Value::dict();
  for (const auto& [key, value] : given.entries())
    if (key != Value(keys::kParams) && key != Value(keys::kOptimizerName) &&
        key != Value(keys::kOptimizerVersion))
      settings.set(key.as_string(), value);
  const auto defaults = [&](std::initializer_list<std::pair<const char*, Value>> all) {
    for (const auto& [key, value] : all)
      if (!settings.contains(key)) settings.set(key, value);
  };
  const bool adam = parameter.states.contains(kExpAvgSqState),
             sgd = parameter.states.contains(kMomentumState);
  if (adam) defaults({{"amsgrad", false}, {"capturable", false}, {"decoupled_weight_decay", true}});
  if (sgd) defaults({{"dampening", 0.0}, {"nesterov", false}});
  if (adam || sgd)
    defaults({{"maximize", false}, {"foreach", {}}, {"differentiable", false}, {"fused", {}}});
  return settings;
}

class EntriesOfModel {
 public:
  explicit EntriesOfModel(const DcpOptions& options) : options_(options) {}

  void add_model(const Checkpoint& checkpoint) {
    for (auto& [name, tensor] : fp32_tensors(checkpoint, /*exclude_frozen=*/false)) {
      tensor.requires_grad = false;
      all.push_back({{options_.model_key, name}, tensor});
    }
  }

  void add_optimizer(const UncutModel& model) {
    const Value optimizer = options_.optimizer_key, groups = keys::kParamGroups;
    for (size_t g = 0; g < model.groups.size(); ++g) {
      const std::vector<std::string>& names = model.groups[g];
      for (const std::string& name : names) add_states(model.checkpoint.parameter(name), name);
      if (names.empty()) continue;
      const Value settings =
          torch_settings(model.settings[g], model.checkpoint.parameter(names[0]));
      for (const auto& [key, value] : settings.entries())
        all.push_back({{optimizer, groups, static_cast<int64_t>(g), key}, value});
      all.push_back(
          {{optimizer, groups, static_cast<int64_t>(g), keys::kParams}, Value::list_of(names)});
      for (const std::string& name : names)
        for (const auto& [key, value] : settings.entries())
          if (key != Value(keys::kParamNames))
            all.push_back(
                {{optimizer, std::string(keys::kParamGroups) + "." + name + "." + key.as_string()},
                 value});
    }
  }

  std::vector<DcpEntry> all;

 private:
  void add_states(const SavedParameter& parameter, const std::string& name) {
    const auto add = [&](std::string_view state, TensorRecord tensor) {
      tensor.requires_grad = false;
      all.push_back({{options_.optimizer_key, keys::kState, name, state}, std::move(tensor)});
    };
    if (parameter.step) add(kStepState, step_tensor(parameter.step));
    for (const auto& [state, tensor] : parameter.states)
      if (state != kFp32State) add(state, tensor);
  }

  const DcpOptions& options_;
};

}  // namespace

DcpReport export_dcp(const DcpOptions& options, const ProgressCallback& progress) {
  const auto start = std::chrono::steady_clock::now();
  DcpReport report;
  const fs::path input = resolve_tag(without_trailing_slash(options.input), "", &report.notes),
                 output = without_trailing_slash(options.output);
  expect_apart(input, output);
  RecordChecksums checks;
  const SourceFiles sources(input);
  const Uncut source = open_uncut(input, options.threads, checks);
  report.source = source.checkpoint.description;
  EntriesOfModel entries(options);
  entries.add_model(source.checkpoint);
  if (source.model)
    entries.add_optimizer(*source.model);
  else
    report.notes.push_back("the source has no optimizer's state: only the model is written");
  if (std::string note = checks.note(); !note.empty()) report.notes.push_back(std::move(note));
  for (const DcpEntry& entry : entries.all) report.tensors += entry.content.is_tensor();
  OutputFolder out(output, "the output", kDcp);
  const std::vector<StreamedFile> files = dcp_files(out.folder(), entries.all);
  out.expect(files, report);
  report.kept = out.stream(files, options.threads, checks, progress).kept;
  sources.expect_unchanged();
  out.publish(source.checkpoint.metadata
                  ? source.checkpoint.metadata.find(keys::kGlobalSteps).value_or(0).as_int()
                  : 0);
  report.seconds = seconds_since(start);
  return report;
}

}  // namespace anymesh
