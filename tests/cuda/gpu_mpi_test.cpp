#include <ATen/Functions.h>
#include <torch/csrc/autograd/autograd.h>

#include <future>
#include <optional>

#include "framework/checkpoint/host_reader.h"
#include "framework/comm/staged_communicator.h"
#include "framework/cuda/cuda.h"
#include "framework/kernels/activation.h"
#include "framework/kernels/adamw_sweeps.h"
#include "framework/kernels/dropout.h"
#include "framework/kernels/heads.h"
#include "framework/kernels/linear.h"
#include "framework/kernels/norm.h"
#include "framework/tensor_parallel/cross_entropy.h"
#include "framework/zero/gradient_sum.h"
#include "tests/support/ranks.h"

// Compares each function with its twin on the CPU, bit by bit where both promise that.
namespace anymesh {
namespace {

class Gpu : public testing::Test {
 protected:
  void SetUp() override {
    const CudaDevices devices = cuda_devices();
    ASSERT_GT(devices.count, 0) << devices.missing;
    use_cuda_device(test_world()->rank() % devices.count);
  }
};

torch::Tensor to_gpu(const torch::Tensor& t) { return t.to(torch::kCUDA); }

::testing::AssertionResult same(const torch::Tensor& gpu, const torch::Tensor& cpu) {
  if (gpu.is_cuda() && torch::equal(gpu.cpu(), cpu)) return testing::AssertionSuccess();
  return testing::AssertionFailure() << gpu << " is not " << cpu;
}

TEST_F(Gpu, AdamWWritesTheBitsOfTheCpu) {
  torch::manual_seed(1);
  for (const auto dtype : {torch::kFloat, torch::kDouble}) {
    for (const auto rounded :
         std::vector<std::optional<torch::Dtype>>{torch::kBFloat16, torch::kHalf, std::nullopt}) {
      torch::Tensor state[4], copies[4];
      for (int i = 0; i < 4; ++i) {
        state[i] = torch::randn({10'007}, dtype).abs_();
        copies[i] = to_gpu(state[i]);
      }
      const torch::Tensor low = rounded ? torch::zeros({10'007}, *rounded) : torch::Tensor(),
                          low_copy = rounded ? to_gpu(low) : torch::Tensor();
      for (int step = 1; step <= 3; ++step) {
        adamw_step({{state[0], state[1], state[2], state[3], low}}, {}, step, 1e-3, 0.1, 0.7);
        adamw_step({{copies[0], copies[1], copies[2], copies[3], low_copy}}, {}, step, 1e-3, 0.1,
                   0.7);
      }
      for (int i = 0; i < 4; ++i) EXPECT_TRUE(same(copies[i], state[i])) << i;
      if (rounded) {
        EXPECT_TRUE(same(low_copy, low));
      }
    }
  }
}

TEST_F(Gpu, SumsOfSquaresAreInDouble) {
  const std::vector<torch::Tensor> x{torch::randn({100'003}) * 1e4, torch::randn({7})};
  const std::vector<torch::Tensor> copies{to_gpu(x[0]), to_gpu(x[1])};
  EXPECT_NEAR(sum_of_squares(copies) / sum_of_squares(x), 1, 1e-13);
  const std::vector<torch::Tensor> bad{copies[0], to_gpu(torch::full({3}, NAN))};
  EXPECT_TRUE(std::isnan(sum_of_squares(bad)));
}

TEST_F(Gpu, DropoutDropsWhatItDropsOnTheCpu) {
  const DropoutContext context{.seed = 42, .samples = {7, 1'000'000'000'000}};
  const DropoutStream stream{3, DropoutSite::MlpOutput};
  for (const auto dtype : {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16}) {
    const torch::Tensor x = torch::randn({2, 3, 1003}).to(dtype);
    for (const int64_t first : {int64_t{0}, int64_t{5}, int64_t{1} << 33}) {
      const torch::Tensor y = dropout(to_gpu(x), 0.3, context, stream, first);
      EXPECT_TRUE(same(y, dropout(x, 0.3, context, stream, first))) << dtype << " " << first;
    }
  }
}

// Compares outputs of `work` on inputs of a dtype, and the gradients of the inputs, on the GPU with
// float64 on the CPU, to units in the last place of the greatest.
using Work = std::function<std::vector<torch::Tensor>(const std::vector<torch::Tensor>&)>;
void expect_float64s(const Work& work, const std::vector<torch::Tensor>& inputs) {
  for (const auto& [dtype, unit] :
       {std::pair(torch::kFloat, 1e-6), {torch::kHalf, 2e-3}, {torch::kBFloat16, 2e-2}}) {
    const auto run = [&, dtype = dtype](torch::Device device, torch::Dtype computed) {
      torch::manual_seed(3);
      std::vector<torch::Tensor> leaves, gradients;
      for (const torch::Tensor& x : inputs)
        leaves.push_back(x.to(dtype).to(device, computed).detach().requires_grad_());
      std::vector<torch::Tensor> values = work(leaves);
      for (const torch::Tensor& y : values)
        gradients.push_back(torch::randn(y.sizes()).to(dtype).to(y.options()));
      torch::autograd::backward(values, gradients);
      for (const torch::Tensor& x : leaves) values.push_back(x.grad());
      return values;
    };
    const auto ours = run(torch::kCUDA, dtype), exact = run(torch::kCPU, torch::kDouble);
    for (size_t i = 0; i < exact.size(); ++i) {
      const double off = (ours[i].cpu().to(torch::kDouble) - exact[i]).abs().max().item<double>();
      EXPECT_LE(off, unit * exact[i].abs().max().item<double>()) << dtype << ", value " << i;
    }
  }
}

TEST_F(Gpu, SwigluMeetsFloat64) {
  torch::manual_seed(1);
  for (const int64_t f : {64, 2730})
    expect_float64s([](const auto& in) { return std::vector{swiglu(in[0])}; },
                    {torch::randn({3, 5, 2 * f})});
}

TEST_F(Gpu, NormsMeetFloat64) {
  torch::manual_seed(1);
  for (const int64_t h : {768, 2048, 1001}) {
    const torch::Tensor x = torch::randn({2, 150, h}) * 3 + 1, y = torch::randn({2, 150, h}),
                        weight = torch::randn({h}), bias = torch::randn({h});
    const auto both = [](const SumAndNorm& of) { return std::vector{of.sum, of.normed}; };
    expect_float64s(
        [&](const auto& in) {
          return both(added_norm(in[0], in[1], {in[2], in[3]}));
        },
        {x, y, weight, bias});
    expect_float64s(
        [&](const auto& in) {
          return both(added_norm(in[0], in[1], {in[2], {}}));
        },
        {x, y, weight});
    expect_float64s(
        [](const auto& in) {
          return std::vector{norm(in[0], {in[1], in[2]})};
        },
        {x, weight, bias});
    expect_float64s(
        [&](const auto& in) {
          return both(kept_norm(in[0], {in[1], in[2]}));
        },
        {x, weight, bias});
  }
}

TEST_F(Gpu, LinearMeetsFloat64) {
  torch::manual_seed(1);
  expect_float64s([](const auto& in) { return std::vector{blocked_linear(in[0], in[1], in[2])}; },
                  {torch::randn({3, 150, 64}), torch::randn({136, 64}) / 8, torch::randn({136})});
}

TEST_F(Gpu, HeadsMeetFloat64) {
  torch::manual_seed(1);
  const torch::Tensor angles = torch::rand({50, 8}, torch::kDouble),
                      positions = torch::randint(50, {2, 50}, torch::kLong);
  for (const int64_t group : {1, 3})
    for (const bool turns : {false, true})
      expect_float64s(
          [&](const auto& in) {
            const auto there = [&](const torch::Tensor& x) {
              return turns ? x.to(in[0].options()) : torch::Tensor();
            };
            const Heads heads =
                split_heads(in[0], {there(angles.cos()), there(angles.sin()),
                                    turns ? positions.to(in[0].device()) : torch::Tensor()});
            return std::vector{heads.q, heads.k, heads.v};
          },
          {torch::randn({2, 50, 4, group + 2, 24})});
}

TEST_F(Gpu, SinksTakeGradientsInFp32) {
  torch::manual_seed(1);
  const torch::Tensor x = torch::randn({300, 64}).to(torch::kCUDA, torch::kBFloat16),
                      dy = torch::randn({300, 48}).to(x.options());
  const auto fp32 = x.options().dtype(torch::kFloat);
  const torch::Tensor sums = torch::full({48 * 64}, NAN, fp32);
  GradientSum sum(sums, true);
  for (int micro_batch = 0; micro_batch < 2; ++micro_batch) ASSERT_TRUE(sum.add_product(dy, x));
  const torch::Tensor exact = dy.to(torch::kDouble).t().mm(x.to(torch::kDouble)) * 2;
  EXPECT_LE((sums.view({48, 64}) - exact).abs().max().item<double>(), 1e-3);
}

TEST_F(Gpu, CrossEntropyMeetsFloat64) {
  torch::manual_seed(1);
  const CommPtr alone = staged_communicator(test_world()->split(test_world()->rank(), 0));
  for (const auto& [columns, vocabulary] : {std::pair<int64_t, int64_t>{50304, 50257}, {77, 70}}) {
    const torch::Tensor labels = torch::randint(vocabulary, {2, 9}, torch::kLong);
    expect_float64s(
        [&, vocabulary = vocabulary](const auto& in) {
          return std::vector{
              vocab_parallel_cross_entropy(in[0], labels.to(in[0].device()), vocabulary, {alone})};
        },
        {torch::randn({2, 9, columns}) * 4});
  }
}

// Reads from another thread the bytes that the GPU had yet to write when the reader was made.
TEST_F(Gpu, ReadsWhatWillHaveBeenWritten) {
  torch::Tensor x = torch::randn({1000, 1000}, torch::kCUDA);
  for (int i = 0; i < 50; ++i) x = x.matmul(x).div_(x.norm());
  const HostReader read = host_reader(x);
  std::vector<std::byte> bytes(x.nbytes());
  const std::span<std::byte> all(bytes);
  std::async(std::launch::async, [&] {
    for (size_t at = 0; at < all.size(); at += 1'600'000)
      read(at, all.subspan(at, std::min<size_t>(1'600'000, all.size() - at)));
  }).get();
  EXPECT_TRUE(same(x.view(torch::kByte).view(-1),
                   torch::from_blob(bytes.data(), {4'000'000}, torch::kByte)));
  std::byte none;
  EXPECT_ANY_THROW(read(x.nbytes(), {&none, 1}));
}

// Each rank is alone, because NCCL does not take two ranks on one GPU.
TEST_F(Gpu, NcclOfOneRank) {
  const CommPtr comm =
      nccl_communicator(test_world()->split(test_world()->rank(), 0), std::chrono::seconds(60));
  const torch::Tensor x = torch::randn({1000});
  for (const auto dtype :
       {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16, torch::kLong}) {
    const torch::Tensor cpu = (dtype == torch::kLong ? x * 0x1p60 : x).to(dtype), gpu = to_gpu(cpu);
    comm->all_reduce(gpu);
    comm->all_reduce(gpu, ReduceOp::Max);
    comm->broadcast(gpu, 0);
    EXPECT_TRUE(same(gpu, cpu));
    torch::Tensor gathered = torch::zeros_like(gpu), part = torch::zeros_like(gpu),
                  received = torch::zeros_like(gpu), wide = torch::zeros_like(gpu, torch::kDouble);
    comm->all_gather(gathered, gpu);
    EXPECT_TRUE(same(gathered, cpu));
    comm->reduce_scatter(part, gpu);
    EXPECT_TRUE(same(part, cpu));
    if (dtype != torch::kLong) {
      comm->reduce_scatter(wide, gpu);
      EXPECT_TRUE(same(wide, cpu.to(torch::kDouble)));
    }
    comm->exchange(gpu, 0, received, 0);
    EXPECT_TRUE(same(received, cpu));
    const auto pending = comm->start_all_gather(gathered.zero_(), gpu);
    pending->wait();
    EXPECT_TRUE(same(gathered, cpu));
  }
  torch::Tensor host = x.clone();
  comm->all_reduce(host);
  EXPECT_TRUE(torch::equal(host, x));
  EXPECT_EQ(comm->split(0, 0)->size(), 1);
}

TEST_F(Gpu, StagedVerbsEqualTheHosts) {
  const CommPtr host = test_world(), comm = staged_communicator(host);
  const int ranks = comm->size(), rank = comm->rank();
  for (const auto dtype : {torch::kFloat, torch::kBFloat16, torch::kLong}) {
    const torch::Tensor mine = (torch::arange(12 * ranks) * 3 % 17 + 100 * rank).to(dtype);
    torch::Tensor cpu = mine.clone(), gpu = to_gpu(mine);
    for (const CommPtr& group : {host, comm}) group->all_reduce(group == host ? cpu : gpu);
    EXPECT_TRUE(same(gpu, cpu));

    cpu = torch::zeros({ranks * mine.numel()}, dtype), gpu = to_gpu(cpu);
    host->all_gather(cpu, mine);
    comm->all_gather(gpu, to_gpu(mine));
    EXPECT_TRUE(same(gpu, cpu));
    comm->all_gather(gpu, gpu.narrow(0, rank * mine.numel(), mine.numel()));  // in place
    EXPECT_TRUE(same(gpu, cpu));

    std::vector<int64_t> counts(static_cast<size_t>(ranks), 12);
    counts[0] += 5, counts.back() -= 5;
    cpu = torch::zeros({counts[static_cast<size_t>(rank)]}, dtype), gpu = to_gpu(cpu);
    host->reduce_scatter(cpu, mine, counts);
    comm->reduce_scatter(gpu, to_gpu(mine), counts);
    EXPECT_TRUE(same(gpu, cpu));

    cpu = mine.clone(), gpu = to_gpu(mine);
    host->broadcast(cpu, ranks - 1);
    comm->broadcast(gpu, ranks - 1);
    EXPECT_TRUE(same(gpu, cpu));

    const int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
    cpu = torch::zeros_like(mine), gpu = to_gpu(cpu);
    host->exchange(mine, next, cpu, previous);
    comm->exchange(to_gpu(mine), next, gpu, previous);
    EXPECT_TRUE(same(gpu, cpu));
  }
}

}  // namespace
}  // namespace anymesh
