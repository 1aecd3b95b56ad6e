#pragma once

#include <chrono>
#include <cstdint>
#include <fstream>
#include <string>

#include "framework/engine.h"

namespace anymesh {

// The run's output, from one rank: lines on stdout, and a CSV row per step with values in %.9g,
// enough to compare two runs bit for bit in fp32. A resumed run keeps the CSV's rows up to the
// iteration it resumes from.
class RunLog {
 public:
  RunLog(bool active, const std::string& csv_path, int64_t resumed_iteration);

  void line(const std::string& text);
  void step(const StepReport& report, int64_t train_iters, bool print);
  // Collective: peak memory of the ranks, time of a step.
  void summary(Communicator& world);

 private:
  bool active_;
  std::ofstream csv_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  int64_t first_iteration_;
  double step_ms_sum_ = 0;
  int64_t steps_ = 0;
};

// VmHWM of this process, in bytes.
int64_t peak_memory();

}  // namespace anymesh
