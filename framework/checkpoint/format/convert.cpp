#include "framework/checkpoint/format/convert.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>

#include "framework/checkpoint/format/convert_plan.h"
#include "framework/checkpoint/format/file_io.h"
#include "framework/checkpoint/format/torch_file.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr auto kProgressInterval = std::chrono::milliseconds(200);

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

UniversalInfo find_info(const SourceCheckpoint& source, bool inject) {
  const Value& state = source.model_states[0];
  if (const Value info = state.find(keys::kUniversalInfo)) return UniversalInfo::from_value(info);
  const bool needed = source.stage < 3 || source.tp_size > 1;
  if (needed && !inject) {
    throw std::runtime_error(
        state.where() + ": has no '" + std::string(keys::kUniversalInfo) +
        "', so nothing says how tensor-parallel shards are merged; --inject_missing_state goes on "
        "without (right for a model without tensor parallelism)");
  }
  return {};
}

// Counts what passes, for the progress.
class Counter {
 public:
  Counter(uint64_t total, const ProgressCallback& callback) : total_(total), callback_(callback) {}

  void add(uint64_t bytes) {
    const uint64_t done = done_ += bytes;
    const std::unique_lock lock(mutex_, std::try_to_lock);
    const auto now = Clock::now();
    if (!callback_ || !lock || now - last_ < kProgressInterval) return;
    last_ = now;
    callback_({done, total_, std::chrono::duration<double>(now - start_).count()});
  }

 private:
  uint64_t total_;
  const ProgressCallback& callback_;
  std::atomic<uint64_t> done_{0};
  std::mutex mutex_;
  Clock::time_point start_ = Clock::now(), last_ = start_;
};

class CountedBytes : public ByteSource {
 public:
  CountedBytes(BytesPtr bytes, Counter& counter) : bytes_(std::move(bytes)), counter_(counter) {}
  uint64_t size() const override { return bytes_->size(); }
  void read(uint64_t offset, std::span<std::byte> out) const override {
    bytes_->read(offset, out);
    counter_.add(out.size());
  }

 private:
  BytesPtr bytes_;
  Counter& counter_;
};

Value counted(const OutputFilePlan& file, Counter& counter) {
  if (file.bytes == 0) return file.content;
  TensorRecord tensor = file.content.at(keys::kParam).as_tensor();
  tensor.bytes = std::make_shared<CountedBytes>(tensor.bytes, counter);
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

// Everything but `latest_universal`. Returns the bytes of the tensor files.
uint64_t write_folder(const fs::path& folder, const SourceCheckpoint& source,
                      const ConvertPlan& plan, const ConvertOptions& options,
                      const ProgressCallback& progress) {
  const fs::path zero = folder / kZeroFolder;
  fs::create_directories(zero);
  for (const OutputFilePlan& file : plan.files) fs::create_directory(zero / file.parameter);
  const uint64_t total = tensor_bytes(plan);
  check_space(folder, total);
  Counter counter(total, progress);
  std::atomic<uint64_t> written{0};
  // Large tensors first, so that no worker is left alone with one at the end.
  std::vector<size_t> order(plan.files.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return plan.files[a].bytes > plan.files[b].bytes; });
  parallel_for(order.size(), options.write_workers, [&](size_t i) {
    const OutputFilePlan& file = plan.files[order[i]];
    written +=
        write_torch_file(zero / file.parameter / state_file(file.state), counted(file, counter))
            .bytes;
  });
  written += write_torch_file(zero / kOptimizerStateFile, source.optimizer_state).bytes;
  for (const fs::path& file : source.metadata_files) fs::copy_file(file, folder / file.filename());
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
  const SourceCheckpoint source = open_source_checkpoint(input, options.read_workers);
  const UniversalInfo info = find_info(source, options.inject_missing_info);
  const ConvertPlan plan = plan_conversion(source, info);

  ConvertReport report;
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

  const fs::path temporary = output.string() + ".tmp";
  check_replaceable(temporary);
  fs::remove_all(temporary);
  fs::create_directories(output.parent_path());
  report.bytes = write_folder(temporary, source, plan, options, progress);
  publish_folder(temporary, output);
  write_text_atomically(output.parent_path() / kLatestUniversalFile, output.filename().string());
  report.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return report;
}

}  // namespace anymesh
