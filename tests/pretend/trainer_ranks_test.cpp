// The trainer on a device that is not the CPU: allocation, streams, collectives beside the
// computation, ZeRO 3's releases, snapshots, saves and loads, recomputation, profiles. It has the
// CPU's losses, breaks no rule of the device, and waits for it as seldom as it should. The ranks
// are processes, since each has a device of its own.

#include <ATen/record_function.h>

#include <mutex>

#include "framework/checkpoint/host_reader.h"
#include "framework/data/mock_dataset.h"
#include "framework/profile/profiler.h"
#include "framework/run/micro_batches.h"
#include "framework/tensor_parallel/mappings.h"
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
  Twins(const Topology& mesh, int stage, const std::string& flags = "", bool sequence = false)
      : stage_(stage),
        cpu(mesh, stage, options(torch::kCPU, stage, flags, sequence)),
        device(mesh, stage, options(kPretend, stage, flags, sequence)) {
    for (int step = 0; step < 2; ++step) train();
  }
  static TinyOptions options(torch::Device device, int stage, const std::string& flags,
                             bool sequence) {
    TinyOptions options = OnPretendDevice::options(device, /*recompute=*/stage % 2 == 1);
    options.sequence_parallel = sequence;
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

// Trains a step of so many micro-batches, and returns how often it waited for the device.
int64_t waits_of_step(TinyRun& run, const MockDataset& data, int64_t count) {
  const int64_t before = pretend::waits();
  run.engine.train_batch(micro_batches(data, run.grid, 1, 0, count, /*dropout_seed=*/{}));
  return pretend::waits() - before;
}

RANKS_TEST_F(OnPretendDevice, HasTheLossesOfTheCpu) {
  for (const int stage : {0, 1, 2, 3}) {
    for (const Topology& mesh : {kData, kPipes, kSlices, kSplit}) Twins(mesh, stage);
    for (const Topology& mesh : {kSlices, kSplit}) Twins(mesh, stage, "", /*sequence=*/true);
    Twins({.pp_size = 2, .dp_size = 2, .chunks = 2}, stage, "--num-layers 4");
    Twins(kSlices, stage, "--recompute-modules mlp");
  }
}

// Weights' gradients that are made later, and parameters that are gathered beside the forward.
RANKS_TEST_F(OnPretendDevice, HasThemWithOtherOrders) {
  for (const int stage : {0, 1, 2, 3}) {
    TinyOptions cpu = options(torch::kCPU), device = options(kPretend);
    for (TinyOptions* both : {&cpu, &device}) {
      both->pipeline_schedule = "zb-h1";
      both->overlap_param_gather = stage == 1 || stage == 2;
    }
    for (const Topology& mesh : {kPipes, kSplit}) {
      cpu.sequence_parallel = device.sequence_parallel = mesh.tp_size > 1;
      TinyRun a(mesh, stage, cpu), b(mesh, stage, device);
      for (int step = 0; step < 3; ++step)
        EXPECT_NEAR(a.train(1), b.train(1), 1e-12) << describe(mesh) << " ZeRO " << stage;
    }
  }
}

// One matrix that four ranks enter.
struct Entered {
  Entered(const CommPtr& world, bool sequence)
      : x(at::ones({1, 64, 32}, kDouble).requires_grad_()),
        weight(at::ones({16, 32}, kDouble).requires_grad_()),
        before(pretend::bytes()),
        y(enter_linear(x, weight, {}, {.group = world, .sequence = sequence})) {}
  static inline const torch::TensorOptions kDouble = torch::dtype(torch::kDouble).device(kPretend);
  torch::Tensor x, weight;
  int64_t before;
  torch::Tensor y;
};

RANKS_TEST_F(OnPretendDevice, TheWholeSequenceIsNotKept) {
  const Entered entered(pretend::stream_communicator(test_world()), /*sequence=*/true);
  EXPECT_EQ(entered.y.size(1), 4 * 64);
  EXPECT_EQ(pretend::bytes() - entered.before, static_cast<int64_t>(entered.y.nbytes()));
}

// The names of what all threads record while it lives: the backward runs on one of LibTorch's.
class RecordedNames {
 public:
  RecordedNames()
      : callback_(at::addGlobalCallback(at::RecordFunctionCallback(
            [](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
              const std::lock_guard lock(mutex);
              names.emplace_back(function.name());
              return nullptr;
            }))) {
    names.clear();
  }
  ~RecordedNames() { at::removeCallback(callback_); }
  // Returns those from `first` on that begin with it or are products, each once in a row, since the
  // device hands a product on to the CPU.
  std::vector<std::string> from(const std::string& first) const {
    std::vector<std::string> found;
    for (const std::string& name : names)
      if (name.starts_with(first) || (!found.empty() && name == "aten::mm")) found.push_back(name);
    found.erase(std::unique(found.begin(), found.end()), found.end());
    return found;
  }
  bool comes_before(const std::string& first, const std::string& second) const {
    return std::ranges::find(names, first) < std::ranges::find(names, second);
  }

 private:
  static inline std::mutex mutex;
  static inline std::vector<std::string> names;
  at::CallbackHandle callback_;
};

RANKS_TEST_F(OnPretendDevice, RanksAddAGradientWhileTheWeightsIsMade) {
  for (const bool sequence : {false, true}) {
    const std::string verb = sequence ? "tp reduce_scatter" : "tp all_reduce";
    CommCounts counts;
    const Entered entered(counted(pretend::stream_communicator(test_world()), "tp", &counts),
                          sequence);
    const RecordedNames names;
    torch::autograd::backward({entered.y.sum()}, {});
    EXPECT_EQ(names.from(verb), (std::vector<std::string>{verb, "aten::mm", verb + " wait"}));
    EXPECT_TRUE(at::equal(entered.x.grad(), at::full_like(entered.x, 4 * 16)));
    EXPECT_TRUE(
        at::equal(entered.weight.grad(), at::full_like(entered.weight, sequence ? 4 * 64 : 64)));
  }
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
  waits_of_step(run, data, 1);
  const int64_t one = waits_of_step(run, data, 1);
  EXPECT_EQ(waits_of_step(run, data, 4), one);
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
    waits_of_step(run, data, 1);
    const int64_t one = waits_of_step(run, data, 1), layers = run.config.num_layers;
    EXPECT_EQ(waits_of_step(run, data, 3) - one, 2 * layers) << mesh.ep_size;
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

// Returns whether a verb comes before a phase in the second of two steps.
bool comes_before(TinyOptions options, int stage, const std::string& verb,
                  const std::string& phase) {
  CommCounts counts;
  options.comm_counts = &counts;
  TinyRun run(kData, stage, options);
  run.train(1);
  const RecordedNames names;
  run.train(1);
  return names.comes_before(verb, phase);
}

RANKS_TEST_F(OnPretendDevice, WholeGradientsAreReducedBesideTheBackward) {
  EXPECT_TRUE(comes_before(options(kPretend), 0, "dp all_reduce", "gradients"));
  EXPECT_TRUE(comes_before(options(kPretend), 1, "dp reduce_scatter", "gradients"));
}

RANKS_TEST_F(OnPretendDevice, ParametersAreGatheredBesideTheForward) {
  TinyOptions beside = options(kPretend);
  EXPECT_FALSE(comes_before(beside, 1, "dp all_gather wait", "backward"));
  beside.overlap_param_gather = true;
  EXPECT_TRUE(comes_before(beside, 1, "dp all_gather wait", "backward"));
}

RANKS_TEST_F(OnPretendDevice, GivesAllMemoryBack) {
  const int64_t before = pretend::bytes();
  { TinyRun(kData, 3, options(kPretend)).train(1); }
  EXPECT_EQ(pretend::bytes(), before);
}

}  // namespace
}  // namespace anymesh
