#include "framework/run/run_log.h"

#include <c10/util/StringUtil.h>

#include <cerrno>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "framework/comm/agreement.h"
#include "framework/cuda/cuda.h"
#include "framework/util/format.h"
#include "framework/util/input_file.h"
#include "framework/util/memory_sizes.h"
#include "framework/util/printable.h"

namespace anymesh {
namespace {

constexpr const char* kHeader =
    "iteration,consumed_samples,lm_loss,learning_rate,grad_norm,loss_scale,tokens_per_s,elapsed_ms";

constexpr double kSayEvery = 10;  // seconds between a save's lines in a log

std::string header_with(const std::vector<std::string>& metrics) {
  std::string header = kHeader;
  for (const std::string& name : metrics) header += "," + name;
  return header;
}

// Returns the bytes of the header and the rows up to `iteration`, or 0 if there is nothing to
// continue. A truncated row does not count. Throws if only the metrics differ.
int64_t bytes_up_to(const std::string& path, const std::string& header, int64_t iteration) {
  namespace fs = std::filesystem;
  if (iteration == 0 || !fs::exists(path) || fs::is_character_file(path)) return 0;  // /dev/null
  InputFile file(path);
  std::string row;
  if (!std::getline(file, row) || file.eof()) return 0;
  TORCH_CHECK(row == header || !row.starts_with(kHeader), "--loss-csv ", path,
              ": it has the columns ", row, ", and this run, which would continue it, ", header,
              "; give another file, or a program with the same metrics");
  if (row != header) return 0;
  size_t end = row.size() + 1;
  while (std::getline(file, row) && !file.eof() && std::atoll(row.c_str()) <= iteration)
    end += row.size() + 1;
  return static_cast<int64_t>(end);
}

// Returns "806" or "12.4k".
std::string short_number(double x) {
  return x < 9999.5 ? string_printf("%.0f", x) : string_printf("%.1fk", x / 1e3);
}

// Returns a line of at most 80 columns, unless a number is extraordinary:
//
//   iter  200/1000  loss 2.2789  lr 2.56e-03  norm 0.464  190 ms  8061 tok/s
//
// A program's own metrics stand before the time.
std::string step_line(const StepReport& r, const Metrics& metrics, int64_t train_iters) {
  const std::string last = std::to_string(train_iters);
  const std::string scale = r.loss_scale == 1 ? "" : string_printf("  scale %g", r.loss_scale);
  std::string own;
  for (const auto& [name, value] : metrics) own += string_printf("  %s %.4g", name.c_str(), value);
  return string_printf("iter %*" PRId64 "/%s  loss %.4f  lr %.2e  norm %.3f%s%s  %.*f ms  %s tok/s",
                       static_cast<int>(last.size()), r.iteration, last.c_str(), r.lm_loss,
                       r.learning_rate, r.grad_norm, scale.c_str(), own.c_str(),
                       r.elapsed_ms < 99.95 ? 1 : 0, r.elapsed_ms,
                       short_number(r.tokens_per_s).c_str());
}

}  // namespace

std::vector<std::string> loss_csv_columns() {
  const std::vector<std::string_view> names = split(kHeader, ',');
  return {names.begin(), names.end()};
}

// The start of the header is the same in all versions.
OutputKind loss_csv_kind() { return {"a loss CSV", "iteration,consumed_samples,lm_loss,"}; }

RunLog::RunLog(bool active, const std::string& csv_path, const std::string& tensorboard_dir,
               int64_t resumed_iteration, const std::vector<std::string>& metrics,
               RunRecord& record)
    : active_(active),
      bar_(stdout, active),
      csv_path_(csv_path),
      record_(record),
      first_iteration_(resumed_iteration) {
  if (!active) return;
  try {
    if (!tensorboard_dir.empty()) events_.emplace(tensorboard_dir, resumed_iteration + 1);
  } catch (const std::runtime_error& error) {
    TORCH_CHECK(false, "--tensorboard-dir ", tensorboard_dir, ": ", error.what());
  }
  if (csv_path.empty()) return;
  // Truncates in place, so that a run killed here keeps the earlier rows.
  const std::string header = header_with(metrics);
  const int64_t kept = bytes_up_to(csv_path, header, resumed_iteration);
  if (kept > 0) std::filesystem::resize_file(csv_path, static_cast<uintmax_t>(kept));
  csv_.open(csv_path, kept > 0 ? std::ios::app : std::ios::trunc);
  TORCH_CHECK(csv_, "--loss-csv ", csv_path, ": cannot open it for writing");
  if (kept > 0 || csv_ << header << std::endl) return;
  warn_once(said_csv_fails_, resumed_iteration, csv_path_);
  csv_.clear();
}

void RunLog::line(const std::string& text) {
  if (!active_) return;
  bar_.clear();
  std::printf("%s\n", coloured_line(printable_message(text), stdout).c_str());
  std::fflush(stdout);
}

void RunLog::step(const StepReport& r, const Metrics& metrics, int64_t train_iters, bool print) {
  if (!active_) return;
  ++steps_;
  step_ms_sum_ += r.elapsed_ms;
  if (csv_.is_open()) {
    csv_ << string_printf("%" PRId64 ",%" PRId64 ",%.9g,%.9g,%.9g,%.9g,%.9g,%.9g", r.iteration,
                          r.consumed_samples, r.lm_loss, r.learning_rate, r.grad_norm, r.loss_scale,
                          r.tokens_per_s, r.elapsed_ms);
    for (const auto& [name, value] : metrics) csv_ << string_printf(",%.9g", value);
    csv_ << std::endl;
    if (!csv_) warn_once(said_csv_fails_, r.iteration, csv_path_);
    csv_.clear();
  }
  record(r.iteration, record_of(r, metrics));
  std::vector<TensorBoardWriter::Scalar> scalars{{"lm loss", r.lm_loss},
                                                 {"learning-rate", r.learning_rate},
                                                 {"grad-norm", r.grad_norm},
                                                 {"loss-scale", r.loss_scale},
                                                 {"iteration-time", r.elapsed_ms / 1e3},
                                                 {"tokens/sec", r.tokens_per_s}};
  for (const auto& [name, value] : metrics) scalars.push_back({name, value});
  event(r.iteration, scalars);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
  const double each = elapsed.count() / static_cast<double>(r.iteration - first_iteration_),
               eta = each * static_cast<double>(train_iters - r.iteration);
  bar_.show(static_cast<double>(r.iteration) / static_cast<double>(train_iters),
            string_printf("of %" PRId64 " steps, loss %.4f, %.2f steps/s", train_iters, r.lm_loss,
                          1 / each),
            eta);
  if (!print) return;
  line(step_line(r, metrics, train_iters) + (bar_.active() ? "" : "  ETA " + duration_text(eta)));
}

void RunLog::saving(const Progress& progress, bool print) {
  if (!active_ || progress.bytes_total == 0) return;
  bar_.show(progress.part(), progress.text(), progress.eta_s());
  if (progress.seconds < said_saving_at_) said_saving_at_ = 0;  // from the previous save
  if (!print && (bar_.active() || progress.seconds < said_saving_at_ + kSayEvery)) return;
  said_saving_at_ = progress.seconds;
  line("saving: rank 0 has written " +
       progress_text(progress.part(), progress.text(), progress.eta_s()));
}

void RunLog::validation(const char* when, int64_t iteration, double loss) {
  if (!active_) return;
  const double perplexity = std::exp(loss);
  line(string_printf("validation loss %s iteration %" PRId64 ": %.9g (perplexity %.6g)", when,
                     iteration, loss, perplexity));
  record(iteration, {{"event", "validation"},
                     {"when", when},
                     {"iteration", iteration},
                     {"lm_loss", loss},
                     {"perplexity", perplexity}});
  event(iteration, {{"lm loss validation", loss}, {"lm loss validation ppl", perplexity}});
}

void RunLog::evaluation(const char* when, int64_t iteration, const Metrics& metrics) {
  if (!active_) return;
  std::string text = string_printf("validation %s iteration %" PRId64 ":", when, iteration);
  std::vector<TensorBoardWriter::Scalar> scalars;
  for (const auto& [name, value] : metrics) {
    text += string_printf(" %s %.9g", name.c_str(), value);
    scalars.push_back({name + " validation", value});
  }
  line(text);
  record(iteration, {{"event", "evaluation"},
                     {"when", when},
                     {"iteration", iteration},
                     {"metrics", record_of(metrics)}});
  event(iteration, scalars);
}

void RunLog::record(int64_t iteration, const RecordLine& line) {
  if (active_ && !record_.add(line)) warn_once(said_record_fails_, iteration, record_.path());
}

void RunLog::event(int64_t iteration, const std::vector<TensorBoardWriter::Scalar>& scalars) {
  if (events_ && !events_->add(iteration, scalars))
    warn_once(said_events_fail_, iteration, events_->path().string());
}

void RunLog::warn_once(bool& said, int64_t iteration, const std::string& path) {
  const char* reason = std::strerror(errno);
  if (std::exchange(said, true)) return;
  line(c10::str("WARNING: iteration ", iteration, ": cannot write to ", path, ": ", reason,
                ". Training continues; rows that cannot be written are missing there"));
}

void RunLog::summary(Communicator& world, bool one_process) {
  const auto mib = [](int64_t bytes) {
    return string_printf("%.1f MiB", static_cast<double>(bytes) / (1 << 20));
  };
  const int64_t host = max_over(world, peak_memory()), gpu = max_over(world, cuda_peak_memory());
  const double step_seconds = steps_ > 0 ? step_ms_sum_ / 1e3 / static_cast<double>(steps_) : 0.0;
  line(string_printf("done: %" PRId64 " steps, %.4f s per step, peak memory %s %s", steps_,
                     step_seconds, one_process ? "of all ranks" : "per rank", mib(host).c_str()) +
       (gpu == 0 ? "" : ", and on its GPU " + mib(gpu)));
  record(first_iteration_ + steps_, {{"event", "end"},
                                     {"steps", steps_},
                                     {"seconds_per_step", step_seconds},
                                     {"peak_memory", host},
                                     {"peak_memory_of", one_process ? "all ranks" : "a rank"},
                                     {"gpu_peak_memory", gpu}});
}

}  // namespace anymesh
