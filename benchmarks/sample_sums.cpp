// Measures two ways to add the samples' gradients of a weight so that data parallelism changes no
// bit (--same-bits): as integers on a grid, and in fp32 as a binary tree over the samples. Beside
// them is one product over all samples, whose bits depend on who has which. With OMP_NUM_THREADS
// threads; medians of 15, alternating.
//
//   sample_sums [N, 1536] [K, 384] [POSITIONS, 256] [SAMPLES, 8]
#include <ATen/Functions.h>

#include <cstdio>
#include <cstdlib>

#include "benchmarks/alternating.h"
#include "framework/kernels/fixed_order.h"

namespace {

using anymesh::fixed_dw;

// Adds like a binary counter: `sums` has a tree of 2^i samples at i, or nothing.
void add_to_tree(std::vector<torch::Tensor>& sums, torch::Tensor sum) {
  size_t level = 0;
  for (; level < sums.size() && sums[level].defined(); ++level) {
    sum = sums[level].add_(sum);
    sums[level] = torch::Tensor();
  }
  if (level == sums.size()) sums.emplace_back();
  sums[level] = sum;
}

}  // namespace

int main(int argc, char** argv) {
  const auto size = [&](int i, int64_t otherwise) {
    return argc > i ? std::atoll(argv[i]) : otherwise;
  };
  const int64_t n = size(1, 1536), k = size(2, 384), s = size(3, 256), b = size(4, 8);
  const torch::Tensor dy = torch::randn({b, s, n}), x = torch::randn({b, s, k}),
                      units = torch::zeros({n, k}, torch::kLong);
  int64_t levels = 1;
  while (int64_t{1} << (levels - 1) < b) ++levels;
  const auto weights = static_cast<double>(n * k);
  std::vector<anymesh::Work> ways{
      {"one product", 4 * weights, [&] { fixed_dw(dy, x); }},
      {"integers", 8 * weights,
       [&] {
         anymesh::fixed_dw_units(dy, x, {50, 50}, /*replaces=*/true, units.data_ptr<int64_t>());
       }},
      {"a tree", static_cast<double>(4 * levels) * weights, [&] {
         std::vector<torch::Tensor> sums;
         for (int64_t i = 0; i < b; ++i) add_to_tree(sums, fixed_dw(dy[i], x[i]));
       }}};
  anymesh::time_alternating(ways);
  std::printf("| sum | ms | of one product's | MiB |\n|---|---|---|---|\n");
  for (const anymesh::Work& way : ways)
    std::printf("| %s | %.2f | %.2f | %.1f |\n", way.name, 1e3 * way.seconds,
                way.seconds / ways[0].seconds, way.bytes / 1048576);
}
