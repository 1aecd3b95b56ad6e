// Trains a small GPT for ten steps on however many data-parallel ranks there are, and saves it:
//
//   tools/mpirun.sh 2 train FOLDER
#include <cstdio>
#include <stdexcept>

#include "framework/comm/mpi_job.h"
#include "framework/data/mock_dataset.h"
#include "framework/engine.h"
#include "framework/run/micro_batches.h"
#include "models/gpt/gpt_model.h"

using namespace anymesh;

int main(int argc, char** argv) {
  MpiEnvironment mpi(&argc, &argv);
  const ProcessGrid grid(mpi.world(), {.pp_size = 1, .dp_size = mpi.world()->size(), .tp_size = 1});
  GptConfig gpt;
  gpt.num_layers = 2;
  gpt.hidden_size = 32;
  gpt.num_attention_heads = 4;
  gpt.seq_length = gpt.max_position_embeddings = 16;
  gpt.vocab_size = 50;
  try {
    GptModel model(gpt, grid, torch::kFloat, /*micro_batch_size=*/2, /*seed=*/1234);
    EngineConfig config;
    config.zero.stage = 1;
    config.schedule.max_lr = 1e-3;
    config.schedule.style = "constant";
    config.global_batch_size = 12;
    config.micro_batch_size = 2;
    config.model = model_facts(gpt, grid.topology.tp_size);
    Engine engine(model, grid, config);

    const MockDataset data(1'000, gpt.seq_length, gpt.vocab_size, /*seed=*/1);
    const TrainState& state = engine.state();
    while (state.iteration < 10) {
      const StepReport report =
          engine.train_batch(micro_batches(data, grid, 2, state.consumed_train_samples,
                                           6 / grid.topology.dp_size, state.dropout_seed));
      if (mpi.world()->rank() == 0)
        std::printf("step %ld loss %.7f\n", report.iteration, report.lm_loss);
    }
    engine.save_checkpoint(argc > 1 ? argv[1] : "checkpoints");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "train: %s\n", error.what());
    mpi.abort(1);
  }
}
