// Stages of several chunks against stages of one: the same bits, and checkpoints that load in both.
#include <map>

#include "tests/support/tiny_run.h"

namespace anymesh {
namespace {

using Chunks = SharedFolder;

TinyOptions eight_layers() {
  TinyOptions options;
  options.gpt.num_layers = 8;
  options.gpt.hidden_dropout = options.gpt.attention_dropout = 0.1;
  return options;
}

// Returns the parts of the masters and moments that this rank holds, by name and place.
std::map<std::string, torch::Tensor> states_of(TinyRun& run) {
  std::map<std::string, torch::Tensor> states;
  for (const auto& group : run.engine.optimizer().groups()) {
    for (const auto& piece : group.pieces) {
      std::vector<torch::Tensor> tensors{piece.master.tensor()};
      for (const StateTensor& state : piece.states) tensors.push_back(state.tensor());
      states[group.params[piece.param].name] = at::cat(tensors).clone();
    }
  }
  return states;
}

// Gathers the norms of all stages' states: they have no rank in common.
std::map<std::string, double> norms_of(TinyRun& run) {
  std::map<std::string, double> norms;
  for (const auto& [name, state] : states_of(run))
    norms[name] = state.to(torch::kDouble).square().sum().item<double>();
  return norms;
}

// ZeRO 0 holds whole parameters, which can be compared one by one. Losses and norms depend on all.
RANKS_TEST_F(Chunks, ChangeNothing) {
  for (const int stage : {0, 1, 2, 3}) {
    for (const int chunks : {2, 4}) {
      TinyRun cut({.pp_size = 2, .dp_size = 2, .chunks = chunks}, stage, eight_layers());
      TinyRun again({.pp_size = 2, .dp_size = 2}, stage, eight_layers());
      for (int step = 0; step < 3; ++step) {
        const StepReport a = again.engine.train_batch(again.batches()),
                         b = cut.engine.train_batch(cut.batches());
        EXPECT_EQ(a.lm_loss, b.lm_loss) << stage << " " << chunks << " " << step;
        EXPECT_EQ(a.grad_norm, b.grad_norm) << stage << " " << chunks << " " << step;
      }
      EXPECT_EQ(again.engine.eval_batch(again.batches()), cut.engine.eval_batch(cut.batches()));
      if (stage > 0) continue;
      const auto mine = norms_of(cut);
      for (const auto& [name, norm] : norms_of(again)) {
        if (!mine.contains(name)) continue;
        EXPECT_EQ(mine.at(name), norm) << name;
      }
    }
  }
}

RANKS_TEST_F(Chunks, FourStagesWithOneMicroBatchEach) {
  for (const bool recompute : {false, true}) {
    TinyOptions options = eight_layers();
    options.activation_checkpointing = recompute;
    TinyRun plain({.pp_size = 4}, 0, options), cut({.pp_size = 4, .chunks = 2}, 0, options);
    EXPECT_EQ(plain.train(3), cut.train(3));
  }
}

// An evaluation may have fewer micro-batches than stages.
RANKS_TEST_F(Chunks, EvaluateAnyNumberOfMicroBatches) {
  TinyRun plain({.pp_size = 4}, 0, eight_layers()),
      cut({.pp_size = 4, .chunks = 2}, 0, eight_layers());
  for (const size_t count : {size_t{1}, size_t{3}}) {
    std::vector<MicroBatch> some = plain.batches();
    some.resize(count);
    EXPECT_EQ(plain.engine.eval_batch(some), cut.engine.eval_batch(some));
  }
}

// Layers keep their numbers, so any division of them loads any other's files.
RANKS_TEST_F(Chunks, LoadEachOther) {
  for (const int stage : {0, 1, 3}) {
    const auto mesh = [](int chunks) {
      return Topology{.pp_size = 2, .dp_size = 2, .chunks = chunks};
    };
    for (const int from : {1, 2}) {
      const fs::path folder = folder_ / c10::str("from", from, "stage", stage);
      TinyRun run(mesh(from), stage, eight_layers());
      run.train_and_save(2, folder);
      const double next = run.train(1);
      for (const int to : {1, 2, 4}) {
        TinyRun other(mesh(to), stage, eight_layers());
        other.engine.load_checkpoint(folder);
        EXPECT_EQ(other.train(1), next) << "from " << from << " to " << to << ", ZeRO " << stage;
      }
    }
  }
}

RANKS_TEST_F(Chunks, AModelOfOneRunOfLayersIsRefused) {
  struct OneRun final : StageModule {
    torch::Tensor forward(const torch::Tensor& hidden, const MicroBatch&) override {
      return hidden;
    }
    torch::Tensor empty_hidden() const override { return {}; }
    const std::vector<ParamSpec>& params() const override { return params_; }
    std::vector<ParamSpec> params_;
  } stage;
  const ProcessGrid grid(test_world(), {.pp_size = 4, .chunks = 2});
  EXPECT_THROW(PipelineEngine(stage, grid), UserError);
}

}  // namespace
}  // namespace anymesh
