#include "framework/zero/offload/streamer.h"

#include "framework/kernels/adamw_sweeps.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/message_of.h"

namespace anymesh {
namespace {

using Use = Streamer::Use;

std::shared_ptr<SwapFile> disk() { return std::make_shared<SwapFile>(testing::TempDir()); }

torch::Tensor whole(const StateTensor& state) {
  torch::Tensor out = torch::empty({state.numel()}, state.dtype());
  state.start_read(0, out).get();
  return out;
}

void set(const StateTensor& state, const torch::Tensor& value) {
  state.fill([&](int64_t at, const torch::Tensor& block) {
    block.copy_(value.narrow(0, at, block.numel()));
  });
}

TEST(StateTensor, ReadsAndWritesAlikeInMemoryAndOnDisk) {
  constexpr int64_t n = (int64_t{2} << 20) + 1001;
  torch::manual_seed(4);
  const torch::Tensor value = torch::randn({n}).to(torch::kBFloat16);
  for (const auto& swap : {std::shared_ptr<SwapFile>(), disk()}) {
    const StateTensor state = StateTensor::zeros(n, torch::kBFloat16, swap);
    EXPECT_EQ(state.on_disk(), swap != nullptr);
    EXPECT_TRUE(torch::equal(whole(state), torch::zeros_like(value)));
    set(state, value);
    EXPECT_TRUE(torch::equal(whole(state), value));
    const StateTensor part = state.narrow(13, n - 1000).narrow(7, 500);
    EXPECT_TRUE(torch::equal(whole(part), value.narrow(0, 20, 500)));
    part.start_write(1, value.narrow(0, 0, 9)).get();
    torch::Tensor expected = value.clone();
    expected.narrow(0, 21, 9).copy_(value.narrow(0, 0, 9));
    EXPECT_TRUE(torch::equal(whole(state), expected));
    torch::Tensor bytes = torch::empty({4}, torch::kBFloat16);
    part.read_bytes(6, {static_cast<std::byte*>(bytes.data_ptr()), bytes.nbytes()});
    EXPECT_TRUE(torch::equal(bytes, expected.narrow(0, 23, 4)));
  }
}

// AdamW over state that is in memory, on disk, or some of each, in blocks of any size.
TEST(Streamer, AdamWOnDiskEqualsAdamWInMemory) {
  torch::manual_seed(5);
  constexpr int64_t n = 10'007;
  const torch::Tensor start = torch::randn({n});
  const auto run = [&](int64_t block, const std::array<bool, 3>& swapped) {
    const auto swap = disk();
    std::array<StateTensor, 3> state;
    for (size_t i = 0; i < 3; ++i)
      state[i] = StateTensor::zeros(n, torch::kFloat, swapped[i] ? swap : nullptr);
    set(state[0], start);
    Streamer streamer(block);
    torch::Tensor weights = torch::zeros({n}, torch::kBFloat16);
    for (int step = 1; step <= 3; ++step) {
      const torch::Tensor gradient = torch::sin(start * step);
      streamer.sweep(
          {{state[0], Use::Update}, {state[1], Use::Update}, {state[2], Use::Update}, {}}, n,
          [&](const Streamer::Block& block) {
            const auto& t = block.tensors;
            const auto own = [&](const torch::Tensor& all) {
              return all.slice(0, block.begin, block.end);
            };
            adamw_step({{t[0], own(gradient), t[1], t[2]}}, {}, step, 1e-2, 0.1, 0.5);
            own(weights).copy_(t[0]);
          });
    }
    return std::vector{whole(state[0]), whole(state[1]), whole(state[2]), weights};
  };
  const auto expected = run(n, {false, false, false});
  for (const int64_t block : {256, 1000, 4096, 10'007, 20'000}) {
    for (const auto& swapped :
         {std::array{true, true, true}, {false, true, true}, {true, false, false}}) {
      const auto found = run(block, swapped);
      for (size_t i = 0; i < found.size(); ++i)
        EXPECT_TRUE(torch::equal(found[i], expected[i])) << "block " << block << ", tensor " << i;
    }
  }
}

TEST(Streamer, UsesAreWhatTheySay) {
  const auto swap = disk();
  const StateTensor source = StateTensor::zeros(1000, torch::kFloat, swap),
                    target = StateTensor::zeros(1000, torch::kBFloat16, swap);
  set(source, torch::arange(1000, torch::kFloat));
  set(target, torch::ones({1000}, torch::kBFloat16));
  Streamer streamer(64);
  streamer.sweep({{source, Use::Read}, {target, Use::Write}, {source, Use::None}}, 1000,
                 [](const Streamer::Block& block) {
                   const auto& t = block.tensors;
                   EXPECT_EQ(t[0][0].item<float>(), static_cast<float>(block.begin));
                   EXPECT_FALSE(t[2].defined());
                   t[1].narrow(0, 1, 1).copy_(t[0].narrow(0, 1, 1));
                   t[0].zero_();  // not written back
                 });
  const torch::Tensor kept = torch::arange(1000, torch::kFloat);
  EXPECT_TRUE(torch::equal(whole(source), kept));
  EXPECT_TRUE(torch::equal(whole(target),
                           torch::where(kept.remainder(64) == 1, kept, 0).to(torch::kBFloat16)));
}

TEST(Streamer, BuffersDoNotGrow) {
  Streamer streamer(1024);
  const auto swap = disk();
  EXPECT_EQ(streamer.allocated_bytes(), 0);
  for (const int64_t n : {3000, 100, 100'000}) {
    const StateTensor a = StateTensor::zeros(n, torch::kFloat, swap),
                      b = StateTensor::zeros(n, torch::kBFloat16, swap),
                      in_memory = StateTensor::zeros(n, torch::kFloat, nullptr);
    streamer.sweep({{a, Use::Update}, {b, Use::Write}, {in_memory, Use::Update}}, n,
                   [](const Streamer::Block&) {});
    const int64_t slack = 4 * static_cast<int64_t>(SwapFile::kAlignment);
    EXPECT_EQ(streamer.allocated_bytes(), 2 * 1024 * (4 + 2) + slack);
  }
}

TEST(Streamer, ThrowsWhatWorkAndDisksThrow) {
  constexpr int64_t n = 1 << 18;
  const StateTensor state = StateTensor::zeros(n, torch::kFloat, disk());
  Streamer streamer(1 << 14);
  const auto sweep = [&](const Streamer::Work& work) {
    streamer.sweep({{state, Use::Update}}, n, work);
  };
  EXPECT_THROW(sweep([](const Streamer::Block& block) {
                 if (block.begin == 1 << 16) throw std::logic_error("work");
               }),
               std::logic_error);
  {
    const FileSizeLimit limit(2 * n);
    try {
      sweep([](const Streamer::Block& block) { block.tensors[0].add_(1); });
      ADD_FAILURE() << "a failed write went by";
    } catch (const std::runtime_error& error) {
      EXPECT_THAT(error.what(), HasSubstr("of the swap file: File too large"));
    }
  }
  sweep([](const Streamer::Block& block) { block.tensors[0].fill_(3); });
  EXPECT_TRUE(torch::equal(whole(state), torch::full({n}, 3.0f)));
}

}  // namespace
}  // namespace anymesh
