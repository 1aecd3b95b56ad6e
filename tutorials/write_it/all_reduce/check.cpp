#include <limits>

#include "tutorials/write_it/on_ranks.h"

namespace write_it {
namespace {

using namespace anymesh;

struct Case {
  std::string words;
  std::vector<torch::Tensor> tensors;  // of the ranks
  ReduceOp op = ReduceOp::Sum;
};

void run(const Case& c) {
  const auto ranks = static_cast<int>(c.tensors.size());
  OnRanks<std::vector<std::string>> sums(ranks, [&](const CommPtr& world) {
    const torch::Tensor t = c.tensors[static_cast<size_t>(world->rank())].clone();
    world->all_reduce(t, c.op);
    return words(t);
  });
  for (int rank = 0; rank < ranks; ++rank)
    answer(c.words + ", " + std::to_string(ranks) + " ranks, rank " + std::to_string(rank), "t",
           [&] { return sums.of(rank); });
}

// Returns numbers that round when they are added.
torch::Tensor fractions(int64_t count, int64_t rank, torch::Dtype dtype) {
  return at::arange(count, torch::kDouble)
      .mul(37)
      .add(static_cast<double>(rank * rank * 1000 + 11))
      .remainder(997)
      .div(rank % 2 == 0 ? 7 : 0.003)
      .to(dtype);
}

}  // namespace

void all_reduce() {
  const auto of = [](std::initializer_list<double> list, torch::Dtype dtype) {
    return torch::tensor(at::ArrayRef<double>(list), torch::kDouble).to(dtype);
  };
  const double big = 1 << 24, nan = std::numeric_limits<double>::quiet_NaN();
  for (const auto dtype : {torch::kFloat, torch::kDouble})
    run({dtype == torch::kFloat ? "the sum of 1, b and -b in fp32"
                                : "the sum of 1, b and -b in fp64",
         {of({-big, 1, big}, dtype), of({1, big, -big}, dtype), of({big, -big, 1}, dtype)}});
  run({"the sum of 256, 1 and 1 in bf16",
       {of({256, 1}, torch::kBFloat16), of({1, 1}, torch::kBFloat16),
        of({1, 256}, torch::kBFloat16)}});
  run({"the maximum with a NaN",
       {of({1, nan, -3}, torch::kFloat), of({2, 5, -1}, torch::kFloat)},
       ReduceOp::Max});
  for (const int64_t count : {1, 2, 3, 5, 8, 100, 40000}) {
    for (const int ranks : {1, 2, 3, 4}) {
      for (const auto& [name, dtype] :
           {std::pair("fp32", torch::kFloat), std::pair("bf16", torch::kBFloat16),
            std::pair("int64", torch::kLong)}) {
        if (count > 100 && (ranks != 2 || dtype != torch::kFloat)) continue;
        Case c{"the sum of " + std::to_string(count) + " " + name, {}};
        for (int rank = 0; rank < ranks; ++rank) c.tensors.push_back(fractions(count, rank, dtype));
        run(c);
      }
    }
  }
}

}  // namespace write_it
