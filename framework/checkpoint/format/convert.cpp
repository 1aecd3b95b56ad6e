#include "framework/checkpoint/format/convert.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include "framework/checkpoint/format/convert_plan.h"
#include "framework/checkpoint/format/file_io.h"
#include "framework/checkpoint/format/torch_file.h"
#include "framework/checkpoint/format/zip.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

fs::path without_trailing_slash(const fs::path& path) {
  const fs::path normal = fs::absolute(path).lexically_normal();
  return normal.has_filename() ? normal : normal.parent_path();
}

bool is_inside(const fs::path& inner, const fs::path& outer) {
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

// The output is replaced as a whole, so it had better not be somebody's home.
void check_replaceable(const fs::path& folder) {
  if (!fs::exists(folder) ||
      (fs::is_directory(folder) && (fs::is_empty(folder) || fs::exists(folder / kZeroFolder))))
    return;
  throw std::runtime_error(
      "--output_folder " + folder.string() +
      " exists and is not a universal checkpoint; it would be replaced. Give another");
}

void check_folders(const fs::path& input, const fs::path& output) {
  if (is_inside(output, input) || is_inside(input, output)) {
    throw std::runtime_error("--output_folder " + output.string() + " and --input_folder " +
                             input.string() + " must not be inside each other");
  }
  check_replaceable(output);
}

UniversalInfo find_info(const SourceCheckpoint& source, bool inject,
                        std::vector<std::string>& warnings) {
  const Value& state = source.model_states[0];
  if (const Value info = state.find(keys::kUniversalInfo)) return UniversalInfo::from_value(info);
  const std::string missing =
      state.where() + ": has no '" + std::string(keys::kUniversalInfo) + "'";
  if (source.tp_size > 1 && !inject) {
    throw std::runtime_error(missing + ", so nothing says how the shards of tp " +
                             std::to_string(source.tp_size) +
                             " are merged; --inject_missing_state joins all of them along dim 0");
  }
  if (!inject) warnings.push_back(missing + "; it has one tp rank, so there is nothing to merge");
  return {};
}

// What Megatron-DeepSpeed's files leave open.
void warn_of_megatron(const SourceCheckpoint& source, const UniversalInfo& info,
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

// For both families of DeepSpeed's loaders: ZeRO 1 and 2 want its version, ZeRO 3 the step in an
// optimizer's state dict.
Value optimizer_state_for_all(const SourceCheckpoint& source) {
  Value state = source.optimizer_state;
  Value version = source.model_states[0].find(keys::kDsVersion);
  if (version && !state.contains(keys::kDsVersion)) state.set(keys::kDsVersion, version);
  Value step;
  for (const auto& [name, shards] : source.parameters) step = step ? step : shards.front().step;
  if (!step) return state;
  Value torch = state.find(keys::kOptimizerStateDict);
  if (!torch) torch = Value::dict({{keys::kParamGroups, state.at(keys::kParamGroups)}});
  const Value states = torch.find(keys::kState);
  std::vector<Value::Entry> entries = states ? states.entries() : std::vector<Value::Entry>{};
  if (entries.empty()) entries.emplace_back(0, Value::dict());
  if (!entries[0].second.contains(kStepState)) entries[0].second.set(kStepState, step);
  return state.set(keys::kOptimizerStateDict, torch.set(keys::kState, Value::dict(entries)));
}

// Float32 elements that are NaN or infinite: all bits of the exponent are set.
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

// Watches a tensor as it is written.
class WatchedBytes : public ByteSource {
 public:
  WatchedBytes(TensorRecord tensor, ProgressCounter& counter, std::atomic<int64_t>& not_finite)
      : tensor_(std::move(tensor)), counter_(counter), not_finite_(not_finite) {}
  uint64_t size() const override { return tensor_.bytes->size(); }
  void read(uint64_t offset, std::span<std::byte> out) const override {
    tensor_.bytes->read(offset, out);
    if (tensor_.dtype == DType::kFloat32) not_finite_ += count_not_finite(out);
    counter_.add(out.size());
  }

 private:
  TensorRecord tensor_;
  ProgressCounter& counter_;
  std::atomic<int64_t>& not_finite_;
};

Value watched(const OutputFilePlan& file, ProgressCounter& counter,
              std::atomic<int64_t>& not_finite) {
  if (file.bytes == 0) return file.content;
  TensorRecord tensor = file.content.at(keys::kParam).as_tensor();
  tensor.bytes = std::make_shared<WatchedBytes>(tensor, counter, not_finite);
  Value content = file.content;
  return content.set(keys::kParam, tensor);
}

uint64_t tensor_bytes(const ConvertPlan& plan) {
  uint64_t total = 0;
  for (const OutputFilePlan& file : plan.files) total += file.bytes;
  return total;
}

void check_space(const fs::path& folder, uint64_t needed) {
  const auto available = fs::space(folder).available;
  if (available < needed) {
    throw std::runtime_error(folder.string() + ": " + std::to_string(needed >> 20) +
                             " MiB are needed, " + std::to_string(available >> 20) +
                             " MiB are free");
  }
}

// DeepSpeed looks for other names of the same metadata under ZeRO 3 than under 0 to 2: each file
// also goes under the other one.
void copy_metadata(const SourceCheckpoint& source, const fs::path& folder) {
  for (const fs::path& file : source.metadata_files) {
    fs::copy_file(file, folder / file.filename());
    const auto name = parse_checkpoint_file_name(file.filename().string());
    if (name->dp_rank > 0) continue;
    const bool zero3 = name->kind == CheckpointFileName::Kind::kZero3ModelStates;
    fs::copy_file(file, folder / (zero3 ? model_states_file(name->mp_rank)
                                        : zero3_model_states_file(0, name->mp_rank)));
  }
}

// Tensors that differ between ranks may do so because a file is damaged, which then is the reason.
uint64_t stream_checked(const std::vector<StreamedFile>& files, const ConvertOptions& options,
                        DeferredChecks& checks) {
  std::exception_ptr failure;
  StreamResult result;
  try {
    result = stream_files(files, options.write_workers);
  } catch (const ValueError&) {
    failure = std::current_exception();
  }
  checks.finish(options.write_workers);
  if (failure) std::rethrow_exception(failure);
  return result.bytes;
}

// Everything but `latest_universal`. Returns the bytes of the tensor files.
uint64_t write_folder(const fs::path& folder, const SourceCheckpoint& source,
                      const ConvertPlan& plan, const ConvertOptions& options,
                      DeferredChecks& checks, const ProgressCallback& progress,
                      std::vector<std::string>& warnings) {
  const fs::path zero = folder / kZeroFolder;
  fs::create_directories(zero);
  for (const OutputFilePlan& file : plan.files) fs::create_directory(zero / file.parameter);
  const uint64_t total = tensor_bytes(plan);
  check_space(folder, total);
  ProgressCounter counter(total, progress);
  std::vector<std::atomic<int64_t>> not_finite(plan.files.size());
  std::vector<StreamedFile> files;
  for (size_t i = 0; i < plan.files.size(); ++i) {
    const OutputFilePlan& file = plan.files[i];
    files.push_back(streamed_torch_file(zero / file.parameter / state_file(file.state),
                                        watched(file, counter, not_finite[i])));
  }
  files.push_back(streamed_torch_file(zero / kOptimizerStateFile, optimizer_state_for_all(source)));
  const uint64_t written = stream_checked(files, options, checks);
  for (size_t i = 0; i < plan.files.size(); ++i) {
    if (not_finite[i] == 0) continue;
    warnings.push_back(plan.files[i].parameter + ": " + std::to_string(not_finite[i]) +
                       " elements of " + plan.files[i].state + " are not finite");
  }
  copy_metadata(source, folder);
  if (options.keep_plan) {
    fs::create_directory(folder / "tmp");
    write_text_atomically(folder / "tmp" / "plan.json", plan.to_json());
  }
  sync_file_system(folder);
  return written;
}

}  // namespace

ConvertReport convert_to_universal(const ConvertOptions& options,
                                   const ProgressCallback& progress) {
  const auto start = Clock::now();
  const fs::path input = without_trailing_slash(options.input),
                 output = without_trailing_slash(options.output);
  check_folders(input, output);
  DeferredChecks checks;
  const SourceCheckpoint source = open_source_checkpoint(input, options.read_workers, &checks);
  if (source.weights_only) {
    throw std::runtime_error(
        input.string() +
        ": holds weights only (--no-save-optim), and a universal checkpoint is "
        "mostly optimizer state. It loads on any mesh as it is: --load with "
        "--finetune or --no-load-optim");
  }
  ConvertReport report;
  const UniversalInfo info = find_info(source, options.inject_missing_info, report.warnings);
  const ConvertPlan plan = plan_conversion(source, info);
  warn_of_megatron(source, info, report.warnings);

  report.stage = source.stage;
  report.tp_size = source.tp_size;
  report.pp_size = source.pp_size;
  report.dp_size = source.dp_size;
  report.parameters = plan.parameters;
  report.tensors = static_cast<int64_t>(plan.files.size());
  report.elements = plan.elements;
  std::string unused;
  for (const std::string& pattern : plan.unused_patterns) unused += "\n  " + pattern;
  if (!unused.empty() && options.strict) {
    throw std::runtime_error(
        source.model_states[0].where() +
        ": these patterns match no parameter (--no_strict makes it a warning):" + unused);
  }
  if (!unused.empty()) report.warnings.push_back("these patterns match no parameter:" + unused);

  const fs::path temporary = output.string() + std::string(kTemporarySuffix);
  check_replaceable(temporary);
  fs::remove_all(temporary);
  fs::create_directories(output.parent_path());
  report.bytes = write_folder(temporary, source, plan, options, checks, progress, report.warnings);
  publish_folder(temporary, output);
  write_text_atomically(output.parent_path() / kLatestUniversalFile, output.filename().string());
  report.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return report;
}

}  // namespace anymesh
