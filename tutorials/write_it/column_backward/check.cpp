#include <torch/csrc/autograd/autograd.h>

#include "framework/tensor_parallel/mappings.h"
#include "tutorials/write_it/on_ranks.h"

namespace write_it {
namespace {

using namespace anymesh;

struct Sizes {
  int64_t batch, sequence, in, out;
};

// Answers with the gradient of each rank's x, where every rank has other rows of the weight.
void run(const Sizes& n, int tp, bool sequence) {
  OnRanks<std::vector<std::string>> gradients(tp, [&](const CommPtr& world) {
    const auto mine = [&](const torch::Tensor& whole, int64_t dim) {
      return whole.chunk(tp, dim)[static_cast<size_t>(world->rank())].clone();
    };
    const torch::Tensor x = whole_numbers({n.batch, n.sequence, n.in}, 4),
                        input = (sequence ? mine(x, 1) : x).requires_grad_();
    const torch::Tensor y = enter_linear(input, mine(whole_numbers({n.out, n.in}, 1), 0), {},
                                         {.group = world, .sequence = sequence});
    torch::autograd::backward({y}, {mine(whole_numbers({n.batch, n.sequence, n.out}, 2), 2)});
    return words(input.grad());
  });
  for (int rank = 0; rank < tp; ++rank)
    answer("x [" + list(std::vector{n.batch, n.sequence, n.in}) + "], weight [" +
               list(std::vector{n.out, n.in}) + "], tp " + std::to_string(tp) +
               (sequence ? ", sequence cut" : "") + ", rank " + std::to_string(rank),
           "dx", [&] { return gradients.of(rank); });
}

}  // namespace

void column_backward() {
  for (const Sizes& n : {Sizes{1, 2, 2, 4}, Sizes{2, 8, 16, 32}}) {
    for (const bool sequence : {false, true}) {
      for (const int tp : {2, 1, 4}) {
        if (!sequence || n.sequence % tp == 0) run(n, tp, sequence);
      }
    }
  }
}

}  // namespace write_it
