#pragma once

#include <chrono>
#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "framework/engine.h"
#include "framework/format/folder.h"
#include "framework/run/metrics.h"
#include "framework/run/run_record.h"
#include "framework/run/tensorboard.h"
#include "framework/util/progress_bar.h"

namespace anymesh {

// The names of the report's columns.
std::vector<std::string> loss_csv_columns();

// The kind of file that --loss-csv may continue or replace.
OutputKind loss_csv_kind();

// Writes the run's output, from one rank: lines on stdout, and a bar on a terminal; a CSV row per
// step with values in %.9g, enough to compare two runs bit for bit in fp32; the run's record; and
// TensorBoard scalars under Megatron's names. A resumed run keeps the CSV's rows up to the
// iteration it resumes from, and adds an event file to the folder.
class RunLog {
 public:
  // An empty path turns its output off. `record` must outlive the object. `metrics` are columns
  // behind the report's, in the order in which step() gets them. Throws if a resumed run would
  // continue a CSV of other metrics.
  RunLog(bool active, const std::string& csv_path, const std::string& tensorboard_dir,
         int64_t resumed_iteration, const std::vector<std::string>& metrics, RunRecord& record);

  void line(const std::string& text);
  void step(const StepReport& report, const Metrics& metrics, int64_t train_iters, bool print);
  // Shows the progress of rank 0's files: in the bar, and as a line if `print` is set or, without a
  // bar, every ten seconds.
  void saving(const Progress& progress, bool print);
  void validation(const char* when, int64_t iteration, double loss);
  void evaluation(const char* when, int64_t iteration, const Metrics& metrics);
  void record(int64_t iteration, const RecordLine& line);
  // Prints the peak memory, of the ranks or of the one process that runs them all, and the time per
  // step. Collective.
  void summary(Communicator& world, bool one_process);

 private:
  void event(int64_t iteration, const std::vector<TensorBoardWriter::Scalar>& scalars);
  void warn_once(bool& said, int64_t iteration, const std::string& path);  // reports errno

  bool active_;
  ProgressBar bar_;
  std::string csv_path_;
  std::ofstream csv_;
  std::optional<TensorBoardWriter> events_;
  RunRecord& record_;
  bool said_csv_fails_ = false, said_events_fail_ = false, said_record_fails_ = false;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  int64_t first_iteration_;
  double step_ms_sum_ = 0;
  int64_t steps_ = 0;
  double said_saving_at_ = 0;  // seconds since the save began
};

}  // namespace anymesh
