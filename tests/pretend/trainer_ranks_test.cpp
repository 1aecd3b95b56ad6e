// The trainer on a device that is not the CPU: allocation, streams, collectives beside the
// computation, ZeRO 3's releases, snapshots, saves and loads, recomputation, profiles. It has the
// CPU's losses, breaks no rule of the device, and waits for it as seldom as it should. The ranks
// are processes, since each has a device of its own.

#include "framework/checkpoint/host_reader.h"
#include "framework/data/mock_dataset.h"
#include "framework/profile/profiler.h"
#include "framework/run/micro_batches.h"
#include "framework/zero/memory.h"
#include "tests/pretend/device.h"
#include "tests/pretend/stream_communicator.h"
#include "tests/support/gpt_flags.h"
#include "tests/support/tiny_run.h"

namespace anymesh {
namespace {

struct OnPretendDevice : SharedFolder {
  void SetUp() override {
    pretend::install();
    SharedFolder::SetUp();
  }
  static TinyOptions options(torch::Device device, bool recompute = false) {
    TinyOptions options{.dtype = torch::kDouble, .activation_checkpointing = recompute};
    options.gpt.attention_dropout = options.gpt.hidden_dropout = 0;
    options.device = device;
    if (!device.is_cpu()) options.world = pretend::stream_communicator(test_world());
    return options;
  }
};

const torch::Device kPretend(torch::kPrivateUse1, 0);

// A run on the CPU, and the same run on the device.
struct Twins {
  Twins(const Topology& mesh, int stage, const std::string& flags = "")
      : stage_(stage),
        cpu(mesh, stage, options(torch::kCPU, stage, flags)),
        device(mesh, stage, options(kPretend, stage, flags)) {
    for (int step = 0; step < 2; ++step) train();
  }
  static TinyOptions options(torch::Device device, int stage, const std::string& flags) {
    TinyOptions options = OnPretendDevice::options(device, /*recompute=*/stage % 2 == 1);
    options.gpt = with_flags(options.gpt, flags);
    return options;
  }
  void train() {
    EXPECT_NEAR(device.train(1), cpu.train(1), 1e-12)
        << describe(device.grid.topology) << " ZeRO " << stage_;
  }
  int stage_;
  TinyRun cpu, device;
};

RANKS_TEST_F(OnPretendDevice, HasTheLossesOfTheCpu) {
  for (const Topology& mesh : {kData, kPipes, kSlices, kSplit})
    for (const int stage : {0, 1, 2, 3}) Twins(mesh, stage);
}

RANKS_TEST_F(OnPretendDevice, ExpertsHaveTheLossesOfTheCpu) {
  const Topology all{.dp_size = 4, .ep_size = 4}, pipes{.pp_size = 2, .dp_size = 2, .ep_size = 2},
      slices{.dp_size = 2, .tp_size = 2, .ep_size = 2};
  for (const Topology& mesh : {all, pipes, slices})
    for (const int stage : {0, 1, 2, 3}) {
      Twins twins(mesh, stage,
                  "--swiglu --disable-bias-linear --ffn-hidden-size 8 --moe-ffn-hidden-size 8 "
                  "--num-experts 4 --moe-router-score-function sigmoid "
                  "--moe-router-enable-expert-bias --moe-aux-loss-coeff 0.1");
      twins.device.engine.save_checkpoint(folder_ / "experts");
      twins.cpu.engine.load_checkpoint(folder_ / "experts");
      twins.train();
    }
}

RANKS_TEST_F(OnPretendDevice, SavesWhatTheCpuLoads) {
  for (const int stage : {0, 1, 3})
    for (const bool async : {false, true}) {
      const fs::path folder = folder_ / (std::to_string(stage) + (async ? "async" : ""));
      TinyRun device(kData, stage, options(kPretend));
      device.train(2);
      device.engine.save_checkpoint(folder, {.async = async});
      const double next = device.train(1);  // while the save reads, if it does so beside
      device.engine.finish_save();
      TinyRun cpu(kSplit, 1, options(torch::kCPU)), again(kPipes, 3, options(kPretend));
      cpu.engine.load_checkpoint(folder);
      EXPECT_NEAR(cpu.train(1), next, 1e-12) << stage << async;
      again.engine.load_checkpoint(folder);
      EXPECT_NEAR(again.train(1), next, 1e-12) << stage << async;
    }
}

// Each rank for itself, so that waits for other ranks do not count.
RANKS_TEST_F(OnPretendDevice, MicroBatchesCauseNoWait) {
  const CommPtr alone = test_world()->split(test_world()->rank(), 0);
  TinyOptions own = options(kPretend);
  own.world = pretend::stream_communicator(alone);
  TinyRun run({}, 0, own);
  const MockDataset data(64, run.config.seq_length, run.config.vocab_size, /*seed=*/1);
  const auto waits_of = [&](int64_t count) {
    const int64_t before = pretend::waits();
    run.engine.train_batch(micro_batches(data, run.grid, 1, 0, count, /*dropout_seed=*/{}));
    return pretend::waits() - before;
  };
  waits_of(1);
  const int64_t one = waits_of(1);
  EXPECT_EQ(waits_of(4), one);
  EXPECT_LE(one, 3);  // the loss, the gradients' norm
}

// A layer with experts waits once for each micro-batch, with its experts here or elsewhere.
RANKS_TEST_F(OnPretendDevice, AnExpertLayerWaitsOnce) {
  for (const Topology& mesh : {kData, Topology{.dp_size = 4, .ep_size = 4}}) {
    TinyOptions own = options(kPretend);
    own.gpt = with_flags(own.gpt,
                         "--swiglu --disable-bias-linear --ffn-hidden-size 8 "
                         "--moe-ffn-hidden-size 8 --num-experts 4 --moe-aux-loss-coeff 0.1");
    TinyRun run(mesh, 0, own);
    const MockDataset data(64, run.config.seq_length, run.config.vocab_size, /*seed=*/1);
    const auto waits_of = [&](int64_t count) {
      const int64_t before = pretend::waits();
      run.engine.train_batch(micro_batches(data, run.grid, 1, 0, count, /*dropout_seed=*/{}));
      return pretend::waits() - before;
    };
    waits_of(1);
    const int64_t one = waits_of(1), layers = run.config.num_layers;
    EXPECT_EQ(waits_of(3) - one, 2 * layers) << mesh.ep_size;
  }
}

RANKS_TEST_F(OnPretendDevice, AReaderHasTheBytesOfTheMomentItWasMade) {
  const torch::Tensor x = at::arange(300'000, torch::kFloat).to(kPretend) + 1;  // not waited for
  const HostReader read = host_reader(x);
  std::vector<std::byte> bytes(x.nbytes());
  read(0, bytes);
  EXPECT_TRUE(at::equal(at::from_blob(bytes.data(), {300'000}, torch::kFloat),
                        at::arange(1, 300'001, torch::kFloat)));
}

// The backward runs on a thread of LibTorch's, to which profilers and gauges are handed on.
RANKS_TEST_F(OnPretendDevice, AStepCanBeProfiled) {
  TinyRun run(kData, 2, options(kPretend));
  const int64_t before = pretend::bytes();
  const AllocationGauge gauge(kPretend);
  Profiler profiler;
  run.train(1);
  const std::vector<Span> spans = profiler.stop();
  EXPECT_TRUE(std::ranges::any_of(spans, [](const Span& s) { return s.name == "backward"; }));
  EXPECT_EQ(gauge.bytes().now, pretend::bytes() - before);
  EXPECT_GT(gauge.bytes().peak, gauge.bytes().now);
}

RANKS_TEST_F(OnPretendDevice, GivesAllMemoryBack) {
  const int64_t before = pretend::bytes();
  { TinyRun(kData, 3, options(kPretend)).train(1); }
  EXPECT_EQ(pretend::bytes(), before);
}

}  // namespace
}  // namespace anymesh
