// Measures how near the optimizer's sweeps come to the memory's bandwidth. Runs AdamW on fp32 and
// bf16 parameters and the sum of squares, beside STREAM's triad on as many elements, with
// OMP_NUM_THREADS threads. Prints medians of 15, alternating.
//
//   sweeps [MILLIONS OF PARAMETERS, 64]
#include <ATen/Functions.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>

#include "framework/kernels/adamw_sweeps.h"
#include "framework/util/stopwatch.h"

namespace {

struct Work {
  const char* name;
  double bytes;  // read and written for each element
  std::function<void()> run;
  std::vector<double> seconds;
};

}  // namespace

int main(int argc, char** argv) {
  const int64_t n = (argc > 1 ? std::atoll(argv[1]) : 64) * 1000000;
  const auto filled = [n](double value) { return torch::full({n}, value, torch::kFloat); };
  const torch::Tensor w = filled(1), g = filled(1e-3), m = filled(0), v = filled(0);
  const torch::Tensor bf16 = w.to(torch::kBFloat16);
  float *a = w.data_ptr<float>(), *b = g.data_ptr<float>(), *c = m.data_ptr<float>();
  int64_t step = 0;
  std::vector<Work> works{{"triad a = b + s c",
                           12,
                           [&] {
                             at::parallel_for(0, n, 1 << 14, [=](int64_t begin, int64_t end) {
                               for (int64_t i = begin; i < end; ++i) a[i] = b[i] + 3.f * c[i];
                             });
                           },
                           {}},
                          {"AdamW, fp32",
                           28,
                           [&] {
                             anymesh::adamw_step({{w, g, m, v}}, {}, ++step, 1e-4, 0.01, 0.5);
                           },
                           {}},
                          {"AdamW, bf16 parameters",
                           30,
                           [&] {
                             anymesh::adamw_step({{w, g, m, v, bf16}}, {}, ++step, 1e-4, 0.01, 0.5);
                           },
                           {}},
                          {"sum of squares", 4, [&] { anymesh::sum_of_squares(g); }, {}}};
  for (int round = 0; round < 16; ++round) {
    for (Work& work : works) {
      double seconds = 0;
      {
        const anymesh::Stopwatch timing(seconds);
        work.run();
      }
      if (round > 0) work.seconds.push_back(seconds);
    }
  }
  std::printf("| sweep | GB/s | of the triad's |\n|---|---|---|\n");
  double triad = 0;
  for (Work& work : works) {
    std::sort(work.seconds.begin(), work.seconds.end());
    const double rate =
        work.bytes * static_cast<double>(n) / work.seconds[work.seconds.size() / 2] / 1e9;
    if (triad == 0) triad = rate;
    std::printf("| %s | %.1f | %.2f |\n", work.name, rate, rate / triad);
  }
}
