#pragma once

#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "framework/checkpoint/save/save_folder.h"
#include "framework/engine.h"
#include "models/gpt/gpt_model.h"
#include "tests/support/message_of.h"
#include "tests/support/ranks.h"

namespace anymesh {

namespace fs = std::filesystem;

// A small GPT behind an engine, and the folder that its ranks save to: for tests on four ranks.

inline GptConfig tiny() {
  GptConfig c;
  c.num_layers = 2;
  c.hidden_size = 16;
  c.num_attention_heads = 2;
  c.seq_length = c.max_position_embeddings = 8;
  c.make_vocab_size_divisible_by = 1;
  c.vocab_size = 33;
  return c;
}

inline constexpr Topology kSplit{.pp_size = 2, .dp_size = 1, .tp_size = 2};
inline constexpr Topology kData{.pp_size = 1, .dp_size = 4, .tp_size = 1};
inline constexpr Topology kPipes{.pp_size = 2, .dp_size = 2, .tp_size = 1};
inline constexpr Topology kSlices{.pp_size = 1, .dp_size = 2, .tp_size = 2};

struct TinyOptions {
  GptConfig gpt = tiny();
  TagValidation tags = TagValidation::Warn;
  LrSchedule schedule{.max_lr = 0.01, .decay_samples = 400};
  torch::Dtype dtype = torch::kFloat;
  std::vector<std::string> freeze;
  bool activation_checkpointing = false, sequence_parallel = false, grad_reduce_in_bf16 = false;
  bool overlap_param_gather = false;
  std::string pipeline_schedule = "1f1b";
  CommCounts* comm_counts = nullptr;
  CommPtr world = test_world();
  std::shared_ptr<const SaveLock> save_lock = nullptr;
  torch::Device device = torch::kCPU;
  std::shared_ptr<const Optimizer> optimizer = nullptr;  // AdamW
  std::vector<Setting> settings = {};                    // flags in the checkpoint's args
};

struct TinyRun {
  TinyRun(Topology mesh, int stage, TinyOptions options = {})
      : grid(options.world, mesh, options.comm_counts, options.device),
        config(options.gpt),
        model(config, grid, options.dtype, /*micro_batch_size=*/1, /*seed=*/5,
              options.sequence_parallel),
        engine(model, grid, config_of(mesh, stage, options)) {}

  static EngineConfig config_of(Topology mesh, int stage, const TinyOptions& options) {
    EngineConfig c;
    c.zero.stage = stage;
    c.zero.grad_reduce_in_bf16 = options.grad_reduce_in_bf16;
    c.zero.overlap_param_gather = options.overlap_param_gather;
    c.pipeline_schedule = options.pipeline_schedule;
    c.settings = options.settings;
    if (options.optimizer) {
      c.zero.optimizer.own = options.optimizer;
      c.zero.optimizer.name = options.optimizer->name();
    }
    c.schedule = options.schedule;
    c.global_batch_size = 4;
    c.activation_checkpointing = options.activation_checkpointing;
    c.freeze = options.freeze;
    c.model = model_facts(options.gpt, mesh.tp_size);
    c.tag_validation = options.tags;
    c.patience = std::chrono::seconds(2);
    c.save_lock = options.save_lock;
    return c;
  }

  double train(int steps) {
    double loss = 0;
    for (int i = 0; i < steps; ++i) loss = engine.train_batch(batches()).lm_loss;
    return loss;
  }

  // Saves after each step.
  void train_and_save(int steps, const fs::path& folder) {
    for (int i = 0; i < steps; ++i) {
      train(1);
      engine.save_checkpoint(folder);
    }
  }

  // Returns the masters, moments and counters of this rank.
  std::vector<torch::Tensor> state() {
    std::vector<torch::Tensor> state;
    for (const auto& group : engine.optimizer().groups()) {
      for (const auto& piece : group.pieces) state.push_back(piece.master.tensor().clone());
      for (const auto& piece : group.pieces)
        for (const StateTensor& tensor : piece.states) state.push_back(tensor.tensor().clone());
    }
    state.push_back(torch::tensor({engine.state().iteration, engine.optimizer().steps}));
    return state;
  }

  // Returns four samples a step, dealt to the dp ranks.
  std::vector<MicroBatch> batches() {
    std::vector<MicroBatch> out;
    for (int64_t i = grid.coord.dp; i < 4; i += grid.topology.dp_size) {
      const int64_t sample = engine.state().consumed_train_samples + i;
      const torch::Tensor tokens =
          (torch::arange(config.seq_length + 1) * 7 + sample * 11).remainder(config.vocab_size);
      MicroBatch& batch = out.emplace_back();
      batch.inputs = tokens.narrow(0, 0, config.seq_length).view({1, -1}).to(grid.device);
      batch.labels =
          tokens.narrow(0, 1, config.seq_length).contiguous().view({1, -1}).to(grid.device);
      batch.dropout = {.seed = engine.state().dropout_seed, .samples = {sample}};
    }
    return out;
  }

  ProcessGrid grid;
  GptConfig config;
  GptModel model;
  Engine engine;
};

inline bool same(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const auto& x, const auto& y) { return torch::equal(x, y); });
}

// Returns the names of the entries in a folder, sorted.
inline std::vector<std::string> files_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

// Changes a bit of a file's byte; changes it back when called again.
inline void flip(const fs::path& file, uint64_t at) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(static_cast<std::streamoff>(at));
  const char byte = static_cast<char>(stream.get() ^ 0x10);
  stream.seekp(static_cast<std::streamoff>(at));
  stream.put(byte);
}

// Does this on the first rank, while the others wait for it.
template <class Work>
void on_first_rank(const Work& work) {
  if (test_world()->rank() == 0) work();
  test_world()->barrier();
}

// A folder that all ranks share, empty at the start. The same test by threads and by MPI may run at
// one time.
class SharedFolder : public RankFixture {
 public:
  void SetUp() override {
    const torch::Tensor process = torch::full({1}, int64_t{getpid()}, torch::kLong);
    test_world()->broadcast(process, 0);
    folder_ = fs::temp_directory_path() /
              ("anymesh_engine_" + std::to_string(process.item<int64_t>()) + "_" +
               std::string(testing::UnitTest::GetInstance()->current_test_info()->name()));
    clear();
  }
  void TearDown() override { clear(); }

  // Removes the folder when no rank uses it any more.
  void clear() {
    test_world()->barrier();
    on_first_rank([&] { fs::remove_all(folder_); });
  }

  fs::path folder_;
};

}  // namespace anymesh
