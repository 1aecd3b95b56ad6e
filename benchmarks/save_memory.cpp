// What a save adds to the memory of its ranks, for benchmarks/save_memory.sh:
//
//   mpirun -n TP*PP*DP save_memory FOLDER TP PP ZERO fp32|bf16 none|optimizer|all
//
// Trains a GPT-2 of 124M parameters for a step, has Linux forget the peak of each rank's RSS, saves,
// and prints the most that any rank had more than right before.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "framework/data/mock_dataset.h"
#include "framework/engine.h"
#include "framework/micro_batches.h"
#include "models/gpt/gpt_model.h"

using namespace anymesh;

namespace {

double mebibytes(const char* field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(field)) return std::atof(line.c_str() + std::string(field).size()) / 1024;
  }
  return -1;
}

}  // namespace

int main(int argc, char** argv) {
  MpiEnvironment mpi(&argc, &argv);
  try {
    TORCH_CHECK(argc == 7, "usage: save_memory FOLDER TP PP ZERO fp32|bf16 none|optimizer|all");
    const CommPtr world = mpi.world();
    const std::string folder = argv[1], offload = argv[6];
    const int tp = std::atoi(argv[2]), pp = std::atoi(argv[3]);

    GptConfig gpt;
    gpt.num_layers = gpt.num_attention_heads = 12;
    gpt.hidden_size = 768;
    gpt.seq_length = gpt.max_position_embeddings = 64;
    gpt.vocab_size = 50257;
    const ProcessGrid grid(world,
                           {.pp_size = pp, .dp_size = world->size() / (tp * pp), .tp_size = tp});
    GptModel model(gpt, grid, argv[5] == std::string("bf16") ? torch::kBFloat16 : torch::kFloat,
                   /*micro_batch_size=*/1, /*seed=*/1);
    EngineConfig config;
    config.zero.stage = std::atoi(argv[4]);
    config.zero.offload = {.optimizer = offload != "none",
                           .params = offload == "all",
                           .nvme_path = offload == "none" ? "" : folder};
    config.schedule.max_lr = 1e-4;
    config.schedule.style = "constant";
    config.global_batch_size = grid.topology.dp_size;
    config.vocab_size = gpt.vocab_size;
    config.padded_vocab_size = padded_vocab_size(gpt, tp);
    config.seq_length = gpt.seq_length;
    Engine engine(model, grid, config);
    const MockDataset data(1000, gpt.seq_length, gpt.vocab_size, /*seed=*/1);
    engine.train_batch(micro_batches(data, grid, 1, 0, 1, /*dropout_seed=*/1));

    world->barrier();
    std::ofstream("/proc/self/clear_refs") << "5\n";
    const double before = mebibytes("VmRSS:");
    engine.save_checkpoint(folder);
    torch::Tensor memory = torch::tensor({before, mebibytes("VmHWM:") - before}, torch::kDouble);
    world->all_reduce(memory, ReduceOp::Max);
    if (world->rank() == 0)
      std::printf("%.1f %.1f\n", memory[0].item<double>(), memory[1].item<double>());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    mpi.abort(1);
  }
}
