#include "framework/format/whole/convert.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>

#include "framework/format/checkpoint/model.h"
#include "framework/format/dialects/foreign.h"
#include "framework/format/folder/kinds.h"
#include "framework/format/io/file_io.h"
#include "framework/format/io/write_files.h"
#include "framework/format/sharded/source_files.h"
#include "framework/format/torch_file/record_checksums.h"
#include "framework/format/torch_file/torch_file.h"
#include "framework/format/torch_file/zip.h"
#include "framework/util/errors.h"
#include "framework/util/printable.h"
#include "framework/util/stopwatch.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr const char* kSampleFile = "ds_to_universal_sample";

UniversalInfo find_info(const ShardedCheckpoint& source, bool inject,
                        std::vector<std::string>& warnings) {
  const Value& state = source.model_states[0];
  const bool missing = state.find(keys::kUniversalInfo).is_none();
  if (missing && inject) return {};
  UniversalInfo info = merge_info(source, "; --inject_missing_state joins all of them along dim 0");
  if (missing) {
    warnings.push_back(state.where() + ": has no '" + std::string(keys::kUniversalInfo) +
                       "'; it has one tp rank, so there is nothing to merge");
  }
  return info;
}

// Warns of facts that Megatron-DeepSpeed's files do not record.
void warn_of_megatron(const ShardedCheckpoint& source, const UniversalInfo& info,
                      std::vector<std::string>& warnings) {
  if (!is_megatrons(source.model_states[0])) return;
  const auto is_fused = [](const auto& parameter) {
    return parameter.first.ends_with(".query_key_value.weight");
  };
  const auto& parameters = source.parameters;
  if (source.tp_size > 1 && std::any_of(parameters.begin(), parameters.end(), is_fused)) {
    warnings.push_back(
        "query_key_value is merged as Megatron orders it: for each head or group its queries, key "
        "and value. Megatron-DeepSpeed since December 2024 keeps all queries, keys and values of a "
        "tp rank together, which nothing in the files tells: of such a checkpoint the result is "
        "good at tp " +
        std::to_string(source.tp_size) + " alone, and in Megatron-DeepSpeed alone");
  }
  if (info.padded_vocab_size.value_or(0) > info.original_vocab_size.value_or(0)) {
    warnings.push_back(
        "rows " + std::to_string(*info.original_vocab_size) + " to " +
        std::to_string(*info.padded_vocab_size) +
        " of the vocabulary are padding, which took part in Megatron-DeepSpeed's softmax; they are "
        "left out, as by its own converter, and the loss of a resumed run drops by their share");
  }
}

// Counts the float32 elements that are NaN or infinite: all bits of the exponent are set.
uint32_t count_not_finite(std::span<const std::byte> bytes) {
  constexpr uint32_t kExponent = 0x7F800000;
  uint32_t count = 0;
  for (size_t i = 0; i < bytes.size() / sizeof kExponent; ++i) {
    uint32_t bits;
    std::memcpy(&bits, bytes.data() + i * sizeof bits, sizeof bits);
    count += (bits & kExponent) == kExponent;
  }
  return count;
}

// A file of the universal folder, ready to be written. Its tensor is read from the source during
// the write.
struct StateFile {
  std::string parameter, state;  // zero/<parameter>/<state>.pt
  Value content;
  uint64_t bytes = 0;  // the tensor's size
};

struct ConvertPlan {
  std::vector<std::pair<std::string, SavedParameter>> parameters;
  std::vector<StateFile> files;
  Value metadata, optimizer_state;  // the first model-states file's, and the source's
  std::vector<std::pair<fs::path, std::string>> copies;  // model-states files, and their names here
};

// Returns the states, fp32 first.
std::vector<std::string> states_of(const SavedParameter& parameter) {
  std::vector<std::string> states;
  for (const auto& [name, tensor] : parameter.states)
    states.insert(name == kFp32State ? states.begin() : states.end(), name);
  return states;
}

void add_to(ConvertPlan& plan, const std::string& name, SavedParameter parameter) {
  for (const std::string& state : states_of(parameter)) {
    const TensorRecord tensor = parameter.state(state);
    const bool whole = parameter.whole.contains(state);
    std::vector<Value::Entry> entries =
        whole ? Value::dict({{keys::kWholeState, true}}).entries() : parameter.keys.entries();
    const bool first = parameter.keys.contains(keys::kIsExpertParam);  // as DeepSpeed has them
    entries.emplace(first ? entries.begin() : entries.end(), keys::kParam, tensor);
    plan.files.push_back({name, state, Value::dict(std::move(entries)), tensor.nbytes()});
  }
  if (parameter.step) plan.files.push_back({name, std::string(kStepState), parameter.step});
  plan.parameters.emplace_back(name, std::move(parameter));
}

ConvertPlan plan_of(const ShardedCheckpoint& source, const Merger& merger) {
  ConvertPlan plan{.metadata = source.model_states[0], .optimizer_state = source.optimizer_state};
  merger.merge_all([&](const std::string& name, SavedParameter parameter) {
    add_to(plan, name, std::move(parameter));
  });
  for (size_t i = 0; i < source.metadata_files.size(); ++i) {
    const fs::path& file = source.metadata_files[i];
    const int dp = parse_checkpoint_file_name(file.filename().string())->dp_rank,
              mp = static_cast<int>(i % source.model_states.size());
    plan.copies.emplace_back(file,
                             dp < 0 ? model_states_file(mp) : zero3_model_states_file(dp, mp));
  }
  return plan;
}

// Returns an optimizer state that both families of DeepSpeed's loaders accept: ZeRO 1 and 2 need
// DeepSpeed's version, ZeRO 3 the step in the optimizer's state dict.
Value optimizer_state_for_all(const ConvertPlan& plan) {
  Value state = plan.optimizer_state;
  const Value version = plan.metadata.find(keys::kDsVersion);
  if (version && !state.contains(keys::kDsVersion)) state.set(keys::kDsVersion, version);
  Value step;
  for (const auto& [name, parameter] : plan.parameters) step = step ? step : parameter.step;
  if (!step) return state;
  Value torch = state.find(keys::kOptimizerStateDict);
  if (!torch) torch = Value::dict({{keys::kParamGroups, state.at(keys::kParamGroups)}});
  auto entries = torch.find(keys::kState).value_or(Value::dict()).entries();
  if (entries.empty()) entries.emplace_back(0, Value::dict());
  if (!entries[0].second.contains(kStepState)) entries[0].second.set(kStepState, step);
  return state.set(keys::kOptimizerStateDict, torch.set(keys::kState, Value::dict(entries)));
}

int64_t elements_of(const ConvertPlan& plan) {
  int64_t elements = 0;
  for (const auto& [name, parameter] : plan.parameters) elements += parameter.elements();
  return elements;
}

// Returns the fragments that the file's tensor is merged from.
nlohmann::ordered_json sources_of(const SavedParameter& parameter, const std::string& state) {
  nlohmann::ordered_json sources;
  for (const ParameterShard& shard : *parameter.shards) {
    const auto held = shard.states.find(state);
    if (held == shard.states.end() || shard.pp_rank != parameter.shards->front().pp_rank) continue;
    for (const ShardFragment& fragment : held->second.fragments)
      sources.push_back({{"tp_rank", shard.tp_rank},
                         {"dp_rank", fragment.dp_rank},
                         {"begin", fragment.begin},
                         {"numel", fragment.numel}});
  }
  return sources;
}

std::string json_of(const ConvertPlan& plan) {
  using Json = nlohmann::ordered_json;
  Json json = {{"parameters", plan.parameters.size()},
               {"elements", elements_of(plan)},
               {"files", Json::array()}};
  auto parameter = plan.parameters.begin();
  for (const StateFile& file : plan.files) {
    while (parameter->first != file.parameter) ++parameter;
    Json item = {{"parameter", file.parameter}, {"state", file.state}, {"bytes", file.bytes}};
    if (file.state != kStepState) {
      item["rule"] = parameter->second.rule;
      item["shape"] = parameter->second.state(file.state).shape;
      if (Json sources = sources_of(parameter->second, file.state); !sources.empty())
        item["sources"] = std::move(sources);
    }
    json["files"].push_back(std::move(item));
  }
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

// Returns the file's content. As its tensor is written, non-finite float32 elements are counted.
Value watched(const StateFile& file, std::atomic<int64_t>& not_finite) {
  if (file.bytes == 0) return file.content;
  TensorRecord tensor = file.content.at(keys::kParam).as_tensor();
  if (tensor.dtype != DType::kFloat32) return file.content;
  const auto read = [bytes = tensor.bytes, &not_finite](uint64_t offset, std::span<std::byte> out) {
    bytes->read(offset, out);
    not_finite += count_not_finite(out);
  };
  tensor.bytes = std::make_shared<ComputedBytes>(tensor.bytes->size(), "a watched tensor", read);
  Value content = file.content;
  return content.set(keys::kParam, tensor);
}

// Throws DamagedFile if a parameter's name cannot name a folder: the format has a folder for each
// parameter.
void check_names(const ConvertPlan& plan) {
  constexpr size_t kLongest = 255;
  for (const auto& [name, parameter] : plan.parameters) {
    const bool one_part = is_tag_name(name) && name.find('/') == std::string::npos;
    if (one_part && name.size() <= kLongest) continue;
    const std::string why = name.size() > kLongest
                                ? "has " + std::to_string(name.size()) + " bytes, at most " +
                                      std::to_string(kLongest) + " are possible"
                                : "has a part that is a path";
    throw DamagedFile(plan.metadata.where() + ": the parameter name '" + printable(name, 100) +
                      "' cannot name a folder, which a universal checkpoint needs: it " + why +
                      ". zero_to_fp32 exports it");
  }
}

// Throws Unreadable if an affine map scales a trained parameter. Its moments could be scaled too,
// but not the learning rate and epsilon that it shares with others, so that a resumed run would
// differ.
void refuse_scaled(const ConvertPlan& plan) {
  for (const auto& [name, parameter] : plan.parameters) {
    if (!parameter.has_moments()) continue;
    for (const auto& pieces : parameter.cut.pieces) {
      for (const CutPiece& piece : pieces) {
        if (piece.scale == 1) continue;
        throw Unreadable(parameter.cut.map + ": scales " + name + " by " +
                         std::to_string(piece.scale) + ", and a run that resumes from whole " +
                         "weights would need another learning rate for it. zero_to_fp32 exports " +
                         "the weights");
      }
    }
  }
}

// Returns the files of `folder`. `not_finite` counts the elements of the plan's files.
std::vector<StreamedFile> files_of(const ConvertPlan& plan, const fs::path& folder,
                                   std::vector<std::atomic<int64_t>>& not_finite,
                                   RecordChecksums& checks) {
  const fs::path zero = folder / kZeroFolder;
  std::vector<StreamedFile> files;
  for (size_t i = 0; i < plan.files.size(); ++i) {
    const StateFile& file = plan.files[i];
    files.push_back(streamed_torch_file(zero / file.parameter / state_file(file.state),
                                        watched(file, not_finite[i])));
  }
  files.push_back(streamed_torch_file(zero / kOptimizerStateFile, optimizer_state_for_all(plan)));
  for (const auto& [file, name] : plan.copies)
    files.push_back(streamed_copy(file, folder / name, checks));
  if (plan.copies.empty())
    files.push_back(streamed_torch_file(folder / model_states_file(0), plan.metadata));
  return files;
}

// Writes a sample of the tensors to a temporary file. Returns bytes a second.
double measured_rate(const ConvertPlan& plan, const fs::path& folder, int threads) {
  const NewFile probe(folder / kSampleFile);
  constexpr uint64_t kSample = 256 << 20;
  FileLayout sample;
  for (const StateFile& file : plan.files) {
    const uint64_t size = std::min(file.bytes, kSample - sample.size);
    if (size == 0) continue;
    const BytesPtr bytes = file.content.at(keys::kParam).as_tensor().bytes;
    sample.add(std::make_shared<SubRange>(bytes, 0, size));
  }
  const auto start = Clock::now();
  write_files({{probe.path(), sample}}, threads);
  sync_file(probe.path());
  return static_cast<double>(sample.size) / seconds_since(start);
}

std::shared_ptr<const ShardedCheckpoint> open_source(const ConvertOptions& options,
                                                     const fs::path& input,
                                                     RecordChecksums& checks) {
  auto source = std::make_shared<const ShardedCheckpoint>(
      open_sharded_checkpoint(input, options.read_workers, &checks, options.assume_module_order));
  if (source->weights_only) {
    throw UserError(input.string() +
                    ": holds weights only (--no-save-optim), and a universal checkpoint is "
                    "mostly optimizer state. It loads on any mesh as it is: --load with "
                    "--finetune or --no-load-optim");
  }
  require_states(input, source->states_refused, "zero_to_fp32 exports the weights alone");
  return source;
}

// Throws in strict mode if a pattern matches nothing.
void report_unused(const std::string& file, const std::vector<std::string>& unused_patterns,
                   bool strict, ConvertReport& report) {
  std::string unused;
  for (const std::string& pattern : unused_patterns) unused += "\n  " + printable(pattern);
  if (unused.empty()) return;
  if (strict) {
    throw DamagedFile(
        file + ": these patterns match no parameter (--no_strict makes it a warning):" + unused);
  }
  report.warnings.push_back("these patterns match no parameter:" + unused);
}

ConvertPlan plan_ordinary(const ConvertOptions& options, const fs::path& input,
                          RecordChecksums& checks, ConvertReport& report) {
  const auto ranks = open_source(options, input, checks);
  const ShardedCheckpoint& source = *ranks;
  const Merger merger(ranks, find_info(source, options.inject_missing_info, report.warnings));
  ConvertPlan plan = plan_of(source, merger);
  check_names(plan);
  refuse_scaled(plan);
  warn_of_megatron(source, merger.info(), report.warnings);
  note_numbers(source, /*universal=*/true, report.warnings);
  if (std::string note = checks.note(); !note.empty()) report.warnings.push_back(std::move(note));
  report.stage = source.stage;
  report.tp_size = source.tp_size;
  report.pp_size = source.pp_size;
  report.dp_size = source.dp_size;
  report_unused(source.model_states[0].where(), merger.unused_patterns(), options.strict, report);
  return plan;
}

// Plans another framework's folder, whose tensors are uncut.
ConvertPlan plan_foreign(const ConvertOptions& options, const fs::path& input,
                         RecordChecksums& checks) {
  const Checkpoint source = open_checkpoint(input, options.read_workers, &checks);
  ConvertPlan plan{.metadata = source.metadata, .optimizer_state = source.optimizer_state};
  require_states(input, source.states_refused, "zero_to_fp32 exports the weights alone");
  if (!plan.optimizer_state) throw Unreadable(input.string() + ": has no optimizer's state");
  for (const std::string& name : source.names()) {
    SavedParameter parameter = source.parameter(name);
    parameter.keys = Value::dict();
    add_to(plan, name, std::move(parameter));
  }
  check_names(plan);
  return plan;
}

}  // namespace

ConvertReport convert_to_universal(const ConvertOptions& options,
                                   const ProgressCallback& progress) {
  const auto start = Clock::now();
  ConvertReport report;
  const fs::path output = without_trailing_slash(options.output),
                 input = resolve_tag(without_trailing_slash(options.input), "", &report.warnings);
  expect_apart(input, output);
  RecordChecksums checks;
  const SourceFiles sources(input);
  const ConvertPlan plan = is_foreign(input) ? plan_foreign(options, input, checks)
                                             : plan_ordinary(options, input, checks, report);
  report.parameters = static_cast<int64_t>(plan.parameters.size());
  report.tensors = static_cast<int64_t>(plan.files.size());
  report.elements = elements_of(plan);

  OutputFolder out(output, kOutputFlag, kUniversal, options.dry_run);
  std::vector<std::atomic<int64_t>> not_finite(plan.files.size());
  const std::vector<StreamedFile> files = files_of(plan, out.folder(), not_finite, checks);
  out.expect(files, report);
  if (options.dry_run) {
    if (!report.refusal.empty()) return report;
    const fs::path folder = existing_folder(output.parent_path());
    report.seconds =
        static_cast<double>(report.bytes) / measured_rate(plan, folder, options.write_workers);
    return report;
  }
  report.kept = out.stream(files, options.write_workers, checks, progress, {kPlanFile}).kept;
  for (size_t i = 0; i < plan.files.size(); ++i) {
    if (not_finite[i] == 0) continue;
    report.warnings.push_back(plan.files[i].parameter + ": " + std::to_string(not_finite[i]) +
                              " elements of " + plan.files[i].state + " are not finite");
  }
  if (options.keep_plan) {
    fs::create_directory((out.folder() / kPlanFile).parent_path());
    write_text_atomically(out.folder() / kPlanFile, json_of(plan));
  }
  sources.expect_unchanged();
  out.publish(plan.metadata.find(keys::kGlobalSteps).value_or(0).as_int());
  report.seconds = seconds_since(start);
  return report;
}

}  // namespace anymesh
