// Measures the cost of checkpoints to a run, for the scripts beside this file:
//
// mpirun -n TP*PP*DP checkpoint_cost LAYERS HIDDEN TP PP ZERO fp32|bf16 none|optimizer|all WORK...
//
// builds a GPT-2 of that size on that mesh, with the state named before WORK on disk. Then it does,
// in this order:
//
//   train              a step: one sample of 64 tokens per dp rank
//   save=FOLDER        saves there; async=FOLDER saves asynchronously
//   direct=FOLDER      loads the checkpoint there, resharding it unless the mesh is the same
//   universal=FOLDER   loads the universal checkpoint there
//
// Rank 0 prints a line for each, with the most of any rank: the seconds; the bytes that it read
// (rchar of /proc/self/io) and the bytes of its part of masters and moments; the MiB of RSS before,
// and how much higher the peak was. For an asynchronous save it adds the seconds until the call
// returned, and until state might change again. `bytes` counts all ranks' files.
//
//   save s=1.29286 read=124 held=7.42432e+08 before=1808.05 added=0.957031 bytes=1.97988e+09
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "framework/comm/mpi_job.h"
#include "framework/data/mock_dataset.h"
#include "framework/engine.h"
#include "framework/run/micro_batches.h"
#include "framework/util/stopwatch.h"
#include "models/gpt/gpt_model.h"

using namespace anymesh;

namespace {

using Values = std::vector<std::pair<const char*, double>>;

// Returns the number after `field` in a file of "NAME: NUMBER" lines.
double proc(const char* path, const std::string& field) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(field)) return std::atof(line.c_str() + field.size());
  }
  throw std::runtime_error(c10::str(path, ": no ", field));
}

double bytes_read() { return proc("/proc/self/io", "rchar:"); }
double mebibytes(const char* field) { return proc("/proc/self/status", field) / 1024; }

// Returns the bytes of this rank's part of masters and moments.
double bytes_held(const ZeroOptimizer& optimizer) {
  double bytes = 0;
  for (const ParamGroup& group : optimizer.groups()) {
    for (const ParamGroup::Piece& piece : group.pieces)
      bytes += static_cast<double>(piece.numel() * 3 * sizeof(float));
  }
  return bytes;
}

using Clock = std::chrono::steady_clock;

// Does `work`, which may add values, and prints the most of any rank for each value.
void measure(const Engine& engine, const std::string& name,
             const std::function<void(Values&)>& work) {
  Communicator& world = *engine.grid().world;
  world.barrier();
  std::ofstream("/proc/self/clear_refs") << "5\n";  // resets the peak
  const double before = mebibytes("VmRSS:"), read = bytes_read();
  Values own;
  const auto start = Clock::now();
  work(own);
  Values values = {{"s", seconds_since(start)},
                   {"read", bytes_read() - read},
                   {"held", bytes_held(engine.optimizer())},
                   {"before", before},
                   {"added", std::max(0.0, mebibytes("VmHWM:") - before)}};
  values.insert(values.end(), own.begin(), own.end());
  torch::Tensor most = torch::empty({static_cast<int64_t>(values.size())}, torch::kDouble);
  for (size_t i = 0; i < values.size(); ++i) most.data_ptr<double>()[i] = values[i].second;
  world.all_reduce(most, ReduceOp::Max);
  if (world.rank() != 0) return;
  std::string line = name;
  for (size_t i = 0; i < values.size(); ++i) {
    char text[64];
    std::snprintf(text, sizeof text, " %s=%.6g", values[i].first, most.data_ptr<double>()[i]);
    line += text;
  }
  std::puts(line.c_str());
}

void load(Engine& engine, const std::string& folder, bool universal) {
  const LoadResult loaded =
      engine.load_checkpoint(folder, {.universal = universal, .fallback = false});
  TORCH_CHECK(loaded.path, loaded.report.back());
}

void save_beside(Engine& engine, const std::string& folder, Values& values) {
  const auto start = Clock::now();
  engine.save_checkpoint(folder, {.async = true});
  values.emplace_back("returned", seconds_since(start));
  engine.wait_for_snapshot();
  values.emplace_back("free", seconds_since(start));
  engine.finish_save();
}

void work_on(Engine& engine, const GptConfig& gpt, const std::string& work) {
  const std::string name = work.substr(0, work.find('=')),
                    folder = work.substr(std::min(work.size(), name.size() + 1));
  TORCH_CHECK((name == "train") == folder.empty(), "'", work, "': see the top of this program");
  if (name == "train") {
    const MockDataset data(1000, gpt.seq_length, gpt.vocab_size, /*seed=*/1);
    engine.train_batch(micro_batches(data, engine.grid(), 1, 0, 1, /*dropout_seed=*/1));
  } else if (name == "direct" || name == "universal") {
    measure(engine, name, [&](Values&) { load(engine, folder, name == "universal"); });
  } else {
    TORCH_CHECK(name == "save" || name == "async", "'", name, "' is no work");
    if (name == "async") engine.reserve_snapshot();
    measure(engine, name, [&](Values& values) {
      if (name == "async")
        save_beside(engine, folder, values);
      else
        engine.save_checkpoint(folder);
      values.emplace_back("bytes", static_cast<double>(engine.last_save().bytes));
    });
  }
}

void run(const CommPtr& world, char** argv) {
  const int tp = std::atoi(argv[3]), pp = std::atoi(argv[4]);
  const std::string precision = argv[6], offload = argv[7];
  GptConfig gpt;
  gpt.num_layers = std::atoi(argv[1]);
  gpt.hidden_size = std::atoi(argv[2]);
  gpt.num_attention_heads = gpt.hidden_size / 64;
  gpt.seq_length = gpt.max_position_embeddings = 64;
  gpt.vocab_size = 50257;
  const ProcessGrid grid(world,
                         {.pp_size = pp, .dp_size = world->size() / (tp * pp), .tp_size = tp});
  GptModel model(gpt, grid, precision == "bf16" ? torch::kBFloat16 : torch::kFloat,
                 /*micro_batch_size=*/1, /*seed=*/1);
  EngineConfig config;
  config.zero.stage = std::atoi(argv[5]);
  config.zero.offload = {.optimizer = offload == "none" ? "none" : "nvme",
                         .param = offload == "all" ? "nvme" : "none",
                         .nvme_path = "."};
  config.schedule.max_lr = 1e-4;
  config.schedule.style = "constant";
  config.global_batch_size = grid.topology.dp_size;
  config.model = model_facts(gpt, tp);
  Engine engine(model, grid, config);
  for (char** work = argv + 8; *work; ++work) work_on(engine, gpt, *work);
}

}  // namespace

int main(int argc, char** argv) {
  MpiEnvironment mpi(&argc, &argv);
  try {
    TORCH_CHECK(argc > 8, "usage: checkpoint_cost LAYERS HIDDEN TP PP ZERO fp32|bf16 ",
                "none|optimizer|all WORK...");
    run(mpi.world(), argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    mpi.abort(1);
  }
}
