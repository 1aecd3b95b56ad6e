// Measures how near the optimizer's sweeps come to the memory's bandwidth. Runs AdamW on fp32 and
// bf16 parameters and the sum of squares, beside STREAM's triad on as many elements, with
// OMP_NUM_THREADS threads. Prints medians of 15, alternating.
//
//   sweeps [MILLIONS OF PARAMETERS, 64]
#include <ATen/Functions.h>
#include <ATen/Parallel.h>

#include <cstdio>
#include <cstdlib>

#include "benchmarks/alternating.h"
#include "framework/kernels/adamw_sweeps.h"

int main(int argc, char** argv) {
  const int64_t n = (argc > 1 ? std::atoll(argv[1]) : 64) * 1000000;
  const auto filled = [n](double value) { return torch::full({n}, value, torch::kFloat); };
  const torch::Tensor w = filled(1), g = filled(1e-3), m = filled(0), v = filled(0);
  const torch::Tensor bf16 = w.to(torch::kBFloat16);
  float *a = w.data_ptr<float>(), *b = g.data_ptr<float>(), *c = m.data_ptr<float>();
  int64_t step = 0;
  // Bytes are read and written for each element.
  std::vector<anymesh::Work> works{
      {"triad a = b + s c", 12,
       [&] {
         at::parallel_for(0, n, 1 << 14, [=](int64_t begin, int64_t end) {
           for (int64_t i = begin; i < end; ++i) a[i] = b[i] + 3.f * c[i];
         });
       }},
      {"AdamW, fp32", 28,
       [&] {
         anymesh::adamw_step({{w, g, m, v}}, {}, ++step, 1e-4, 0.01, 0.5);
       }},
      {"AdamW, bf16 parameters", 30,
       [&] {
         anymesh::adamw_step({{w, g, m, v, bf16}}, {}, ++step, 1e-4, 0.01, 0.5);
       }},
      {"sum of squares", 4, [&] { anymesh::sum_of_squares(g); }}};
  anymesh::time_alternating(works);
  std::printf("| sweep | GB/s | of the triad's |\n|---|---|---|\n");
  const auto rate = [n](const anymesh::Work& work) {
    return work.bytes * static_cast<double>(n) / work.seconds / 1e9;
  };
  for (const anymesh::Work& work : works)
    std::printf("| %s | %.1f | %.2f |\n", work.name, rate(work), rate(work) / rate(works[0]));
}
