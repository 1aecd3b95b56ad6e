#include "framework/format/reshard/dcp_export.h"

#include <chrono>
#include <set>

#include "framework/format/dialects/dcp_writer.h"
#include "framework/format/dialects/torch_dist.h"
#include "framework/format/folder/kinds.h"
#include "framework/format/reshard/uncut_model.h"
#include "framework/format/sharded/source_files.h"
#include "framework/format/torch_file/record_checksums.h"
#include "framework/format/whole/fp32_export.h"
#include "framework/util/stopwatch.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

// Returns a group's settings for torch's optimizer that has such states.
Value torch_settings(const Value& given, const SavedParameter& parameter) {
  Value settings = Value::dict();
  for (const auto& [key, value] : given.entries())
    if (key != Value(keys::kParams) && key != Value(keys::kOptimizerName) &&
        key != Value(keys::kOptimizerVersion) && key != Value(kStepState))
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

NamedTensors as_it_is(const std::string& name, std::string_view, const TensorRecord& tensor) {
  return {{name, tensor}};
}

// Returns the uncut model, as it goes over.
DcpModel dcp_model_of(const OpenedUncut& source, const SplitParameter& split) {
  DcpModel model;
  for (const auto& [name, tensor] : fp32_tensors(source.checkpoint, /*exclude_frozen=*/false)) {
    for (auto& [theirs, weight] : split(name, kFp32State, tensor)) {
      weight.requires_grad = false;
      model.parameters[theirs].weight = weight;
      model.order.push_back(theirs);
    }
  }
  if (!source.model) return model;
  const UncutModel& trained = *source.model;
  for (size_t g = 0; g < trained.groups.size(); ++g) {
    if (trained.groups[g].empty()) continue;
    DcpModel::Group group;
    for (const std::string& name : trained.groups[g]) {
      const SavedParameter parameter = source.checkpoint.parameter(name);
      if (group.settings.is_none()) group.settings = torch_settings(trained.settings[g], parameter);
      std::set<std::string> names;
      for (const auto& [state, tensor] : parameter.states) {
        if (state == kFp32State) continue;
        for (auto& [theirs, piece] : split(name, state, tensor)) {
          piece.requires_grad = false;
          auto& states = model.parameters.at(theirs).states;
          states[state] = piece;
          if (parameter.step) states[std::string(kStepState)] = step_tensor(parameter.step);
          if (names.insert(theirs).second) group.names.push_back(theirs);
        }
      }
      if (names.empty())  // before the first step, or of an optimizer without states
        for (const auto& [theirs, weight] : split(name, kFp32State, parameter.weight()))
          group.names.push_back(theirs);
    }
    model.groups.push_back(std::move(group));
  }
  return model;
}

}  // namespace

DcpReport export_dcp(const DcpOptions& options, const ProgressCallback& progress) {
  const auto start = std::chrono::steady_clock::now();
  DcpReport report;
  const fs::path input = resolve_tag(without_trailing_slash(options.input), "", &report.notes),
                 output = without_trailing_slash(options.output);
  expect_apart(input, output);
  RecordChecksums checks;
  const SourceFiles sources(input);
  const OpenedUncut source = open_uncut(input, options.threads, checks);
  report.source = source.checkpoint.description;
  const DcpModel model =
      dcp_model_of(source, options.split ? options.split(source.checkpoint) : as_it_is);
  if (!source.model)
    report.notes.push_back("the source has no optimizer's state: only the model is written");
  if (std::string note = checks.note(); !note.empty()) report.notes.push_back(std::move(note));
  for (const auto& [name, parameter] : model.parameters)
    report.tensors += 1 + std::ssize(parameter.states);
  const int64_t iteration =
      source.checkpoint.metadata
          ? source.checkpoint.metadata.find(keys::kGlobalSteps).value_or(0).as_int()
          : 0;
  OutputFolder out(output, "the output", kDcp);
  const std::vector<StreamedFile> files =
      options.torch_dist
          ? torch_dist_files(out.folder(), model, iteration)
          : dcp_files(out.folder(), dcp_entries(model, options.model_key, options.optimizer_key));
  out.expect(files, report);
  report.kept = out.stream(files, options.threads, checks, progress).kept;
  sources.expect_unchanged();
  out.publish(iteration);
  report.seconds = seconds_since(start);
  return report;
}

}  // namespace anymesh
