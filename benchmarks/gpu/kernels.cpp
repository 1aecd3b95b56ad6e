// Times our GPU kernels beside LibTorch's operators for the same, forward and backward together, in
// bf16 at the sizes of a GPT of 1.3B (hidden 2048, 32768 tokens). Prints milliseconds, medians of
// 15, alternating. A kernel that does not win is to be removed.
//
//   gpu_kernels            built by the preset `cuda`
#include <ATen/Functions.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/cuda.h>

#include <algorithm>
#include <cstdio>
#include <functional>

#include "framework/comm/mpi_job.h"
#include "framework/comm/staged_communicator.h"
#include "framework/cuda/cuda.h"
#include "framework/kernels/activation.h"
#include "framework/kernels/adamw_sweeps.h"
#include "framework/kernels/heads.h"
#include "framework/kernels/norm.h"
#include "framework/tensor_parallel/cross_entropy.h"
#include "framework/util/stopwatch.h"

namespace {

using anymesh::CommPtr;
using torch::Tensor;
using Outputs = std::vector<Tensor>;

struct Work {
  const char* name;
  std::function<void()> ours, libtorchs;
};

Tensor random(at::IntArrayRef shape) {
  return torch::randn(shape, torch::dtype(torch::kBFloat16).device(torch::kCUDA));
}

// Returns work that does `forward` on leaves, and its backward from gradients made once.
std::function<void()> both_ways(std::vector<Tensor> leaves,
                                std::function<Outputs(const std::vector<Tensor>&)> forward) {
  for (Tensor& x : leaves) x = x.detach().clone().requires_grad_();
  Outputs gradients;
  for (const Tensor& y : forward(leaves)) gradients.push_back(torch::ones_like(y));
  return [=] {
    torch::autograd::backward(forward(leaves), gradients);
    for (const Tensor& x : leaves) x.mutable_grad().reset();
  };
}

// Many calls are under way at a time, so that the GPU never waits for the host.
double milliseconds(const std::function<void()>& work) {
  constexpr int kCalls = 20;
  torch::cuda::synchronize();
  double seconds = 0;
  {
    const anymesh::Stopwatch timing(seconds);
    for (int call = 0; call < kCalls; ++call) work();
    torch::cuda::synchronize();
  }
  return seconds / kCalls * 1e3;
}

double median(std::vector<double>& of) {
  std::sort(of.begin(), of.end());
  return of[of.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  const anymesh::MpiEnvironment mpi(&argc, &argv);
  if (const anymesh::CudaDevices gpus = anymesh::cuda_devices(); gpus.count == 0) {
    std::fprintf(stderr, "gpu_kernels: %s\n", gpus.missing.c_str());
    return 1;
  }
  anymesh::use_cuda_device(0);
  constexpr int64_t kTokens = 32768, kHidden = 2048, kInner = 5504, kVocabulary = 50304;
  const CommPtr alone = anymesh::staged_communicator(mpi.world()->split(mpi.world()->rank(), 0));
  const std::vector<Tensor> gate_and_up{random({kTokens, 2 * kInner})},
      logits{random({kTokens, kVocabulary})},
      residual{random({kTokens, kHidden}), random({kTokens, kHidden}), random({kHidden}),
               random({kHidden})},
      projected{random({4, kTokens / 4, 16, 3, 128})};
  const Tensor labels =
      torch::randint(kVocabulary, {kTokens}, torch::dtype(torch::kLong).device(torch::kCUDA));
  Tensor state[4];
  for (Tensor& t : state) t = random({1 << 26}).to(torch::kFloat).abs_();
  const Tensor rounded = state[0].to(torch::kBFloat16);

  const std::vector<Work> works{
      {"swiglu",
       both_ways(gate_and_up, [](const auto& in) { return Outputs{anymesh::swiglu(in[0])}; }),
       both_ways(gate_and_up,
                 [](const auto& in) {
                   const auto halves = in[0].chunk(2, -1);
                   return Outputs{at::silu(halves[0]) * halves[1]};
                 })},
      {"heads, their gradients joined",
       both_ways(projected,
                 [](const auto& in) {
                   const auto heads = anymesh::split_heads(in[0], {});
                   return Outputs{heads.q, heads.k, heads.v};
                 }),
       both_ways(projected,
                 [](const auto& in) {
                   Outputs parts = in[0].split_with_sizes({1, 1, 1}, 3);
                   for (Tensor& part : parts) part = part.flatten(2, 3).transpose(1, 2);
                   return parts;
                 })},
      {"residual and norm",
       both_ways(residual,
                 [](const auto& in) {
                   const auto of = anymesh::added_norm(in[0], in[1], {in[2], in[3]});
                   return Outputs{of.sum, of.normed};
                 }),
       both_ways(residual,
                 [](const auto& in) {
                   const Tensor sum = in[0] + in[1];
                   return Outputs{sum, at::layer_norm(sum, {kHidden}, in[2], in[3])};
                 })},
      {"cross entropy",
       both_ways(logits,
                 [&](const auto& in) {
                   return Outputs{
                       anymesh::vocab_parallel_cross_entropy(in[0], labels, kVocabulary, {alone})};
                 }),
       both_ways(logits,
                 [&](const auto& in) {
                   return Outputs{at::cross_entropy_loss(in[0].to(torch::kFloat), labels, {},
                                                         at::Reduction::None)};
                 })},
      {"AdamW of 67M, bf16 weights",
       [&] {
         anymesh::adamw_step({{state[0], state[1], state[2], state[3], rounded}}, {}, 1, 1e-4, .01,
                             .5);
       },
       [&] {
         const Tensor scaled = state[1] * .5;
         state[2].lerp_(scaled, .1);
         state[3].mul_(.999).addcmul_(scaled, scaled, .001);
         state[0].mul_(1 - 1e-6).addcdiv_(state[2], state[3].sqrt().add_(1e-8), -1e-4);
         rounded.copy_(state[0]);
       }}};
  std::printf("| | ours, ms | LibTorch's, ms | times |\n|---|---|---|---|\n");
  for (const Work& work : works) {
    std::vector<double> ours, libtorchs;
    for (int round = 0; round < 16; ++round) {
      const double a = milliseconds(work.ours), b = milliseconds(work.libtorchs);
      if (round == 0) continue;
      ours.push_back(a);
      libtorchs.push_back(b);
    }
    const double a = median(ours), b = median(libtorchs);
    std::printf("| %s | %.3f | %.3f | %.2f |\n", work.name, a, b, b / a);
  }
}
