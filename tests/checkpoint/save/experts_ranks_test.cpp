// Saves of mixtures of experts on several meshes, of each kind, and loads on others. The other
// tests of saves have dense models.
#include "framework/format/layout.h"
#include "framework/format/torch_file.h"
#include "framework/format/whole.h"
#include "tests/support/gpt_flags.h"
#include "tests/support/tiny_run.h"

namespace anymesh {
namespace {

const Topology kMeshes[] = {{.dp_size = 4, .ep_size = 2},
                            {.dp_size = 2, .tp_size = 2, .ep_size = 2},
                            {.pp_size = 2, .dp_size = 2, .ep_size = 2},
                            {.dp_size = 4, .ep_size = 4},
                            {.pp_size = 2, .dp_size = 1, .tp_size = 2}};

TinyOptions options_of(std::vector<std::string> freeze = {}) {
  return {.gpt = with_flags(tiny(),
                            "--swiglu --untie-embeddings-and-output-weights --disable-bias-linear "
                            "--ffn-hidden-size 8 --moe-ffn-hidden-size 8 --num-experts 4 "
                            "--attention-dropout 0 --hidden-dropout 0 "
                            "--moe-router-score-function sigmoid --moe-router-enable-expert-bias"),
          .freeze = std::move(freeze)};
}

struct Experts : SharedFolder {};

// `load` is a run on another mesh and stage; `saved` went on with it.
void expect_same_loss(TinyRun& saved, TinyRun& load, const std::string& what) {
  EXPECT_NEAR(load.engine.eval_batch(load.batches()), saved.engine.eval_batch(saved.batches()),
              1e-6)
      << what;
}

std::string describe(const Topology& mesh, int stage) {
  return anymesh::describe(mesh) + ", ZeRO " + std::to_string(stage);
}

RANKS_TEST_F(Experts, EachKindOfSaveLoadsOnAnotherMesh) {
  for (size_t i = 0; i < std::size(kMeshes); ++i) {
    for (const int stage : {0, 1, 3}) {
      const std::string what = describe(kMeshes[i], stage);
      const fs::path folder = folder_ / std::to_string(10 * i + stage);
      TinyRun run(kMeshes[i], stage, options_of());
      run.train(2);
      const fs::path background =
          run.engine.save_checkpoint(folder / "async", {.tag = "global_step2", .async = true});
      const double next = run.train(1);
      run.engine.finish_save();
      TinyRun resumed(kMeshes[(i + 1) % std::size(kMeshes)], (stage + 1) % 4, options_of());
      resumed.engine.load_checkpoint(folder / "async");
      EXPECT_NEAR(resumed.train(1), next, 1e-6) << what;

      run.engine.save_checkpoint(folder / "weights",
                                 {.weights_only = true, .save_16bit_model = true});
      TinyRun weights(kMeshes[(i + 2) % std::size(kMeshes)], (stage + 2) % 4, options_of());
      weights.engine.load_checkpoint(folder / "weights", {.load_module_only = true});
      weights.engine.state() = run.engine.state();  // for the same batches
      expect_same_loss(run, weights, what + ", weights alone");

      if (test_world()->rank() > 0) continue;
      const Checkpoint saved = open_checkpoint(folder / "weights", 1);
      const Value model =
          read_torch_file(folder / "weights" / "global_step3" / std::string(kWeightsFile));
      EXPECT_EQ(model.size(), saved.names().size()) << what;
      for (const auto& [name, value] : model.entries()) {
        const TensorRecord whole = saved.parameter(name.as_string()).weight();
        EXPECT_EQ(value.as_tensor().shape, whole.shape) << name.as_string();
        std::vector<std::byte> here(value.as_tensor().nbytes()), there(whole.nbytes());
        value.as_tensor().bytes->read(0, here);
        whole.bytes->read(0, there);
        EXPECT_EQ(here, there) << what << name.as_string();
      }
    }
  }
}

RANKS_TEST_F(Experts, FrozenExpertsMoveToo) {
  for (size_t i = 0; i < std::size(kMeshes); ++i) {
    for (const int stage : {0, 1, 3}) {
      const std::string what = describe(kMeshes[i], stage);
      const fs::path folder = folder_ / std::to_string(10 * i + stage);
      TinyRun run(kMeshes[i], stage, options_of({"experts.w[12]"}));
      run.train(2);
      run.engine.save_checkpoint(folder);
      const double next = run.train(1);
      for (const bool moves : {false, true}) {
        TinyRun resumed(kMeshes[(i + moves) % std::size(kMeshes)], moves ? (stage + 1) % 4 : stage,
                        options_of({"experts.w[12]"}));
        resumed.engine.load_checkpoint(folder);
        const double loss = resumed.train(1);
        EXPECT_NEAR(loss, next, 1e-6) << what;
        if (!moves) {
          EXPECT_EQ(loss, next) << what;
        }
      }
    }
  }
}

}  // namespace
}  // namespace anymesh
