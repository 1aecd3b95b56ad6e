// A user's own training program on the engine, in place of pretrain_gpt's flags and loop:
//
//   tools/mpirun.sh 4 build/release/bin/engine_example checkpoints --tp 2    then, on another mesh,
//   tools/mpirun.sh 3 build/release/bin/engine_example checkpoints
//
// Each run resumes where the last one stopped, does twenty steps, and keeps its own epoch number in
// the checkpoint.
#include "framework/engine.h"

#include <cstdio>
#include <cstdlib>
#include <string>

#include "framework/checkpoint/save/save_folder.h"
#include "framework/comm/mpi_job.h"
#include "framework/data/mock_dataset.h"
#include "framework/run/micro_batches.h"
#include "models/gpt/gpt_model.h"

using namespace anymesh;

int main(int argc, char** argv) {
  MpiEnvironment mpi(&argc, &argv);
  const CommPtr world = mpi.world();
  const std::string folder = argc > 1 ? argv[1] : "checkpoints";
  const int tp = argc > 3 && argv[2] == std::string("--tp") ? std::atoi(argv[3]) : 1;
  try {
    GptConfig gpt;
    gpt.num_layers = 2;
    gpt.hidden_size = 32;
    gpt.num_attention_heads = 4;
    gpt.seq_length = gpt.max_position_embeddings = 16;
    gpt.vocab_size = 50;

    const ProcessGrid grid(world, {.pp_size = 1, .dp_size = world->size() / tp, .tp_size = tp});
    GptModel model(gpt, grid, torch::kBFloat16, /*micro_batch_size=*/2, /*seed=*/1234);
    EngineConfig config;
    config.zero.stage = 2;
    config.schedule.max_lr = 1e-3;
    config.schedule.style = "constant";
    config.global_batch_size = 12;
    config.micro_batch_size = 2;
    config.model = model_facts(gpt, tp);
    config.save_lock = std::make_shared<SaveLock>(*world, folder, "folder");  // from load to save
    Engine engine(model, grid, config);

    const LoadResult loaded = engine.load_checkpoint(folder);
    const int64_t epoch = loaded.path ? loaded.client_state.at("epoch").as_int() + 1 : 0;

    const MockDataset data(1'000'000, gpt.seq_length, gpt.vocab_size, /*seed=*/1);
    const int64_t steps = engine.state().iteration + 20;
    while (engine.state().iteration < steps) {
      const StepReport report =
          engine.train_batch(micro_batches(data, grid, 2, engine.state().consumed_train_samples,
                                           6 / grid.topology.dp_size, engine.state().dropout_seed));
      if (world->rank() == 0 && report.iteration % 10 == 0)
        std::printf("epoch %ld step %ld loss %.6f\n", epoch, report.iteration, report.lm_loss);
    }
    engine.save_checkpoint(folder, {.client_state = Value::dict({{"epoch", epoch}})});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "[rank %d] %s\n", world->rank(), error.what());
    mpi.abort(1);
  }
}
