// gpt_logits TOKENS LOGITS [flags of pretrain_gpt]: loads a checkpoint as pretrain_gpt does, on any
// mesh, and writes the model's logits.
//
//   TOKENS   int64 [b, s], raw; s is --seq-length
//   LOGITS   float [b, s, v], raw, without the vocabulary's padding
//
//   gpt_logits tokens logits --local-ranks 4 --tensor-model-parallel-size 2
//       --pipeline-model-parallel-size 2 --load checkpoints --universal-checkpoint ...
#include <ATen/Functions.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/StringUtil.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <optional>

#include "framework/comm/agreement.h"
#include "framework/comm/mpi_job.h"
#include "framework/comm/thread_job.h"
#include "framework/config/parse.h"
#include "framework/engine.h"
#include "framework/run/datasets.h"
#include "models/gpt/gpt_model.h"

namespace anymesh {
namespace {

torch::Tensor read_tokens(const std::string& path, int64_t seq_length) {
  std::ifstream in(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  TORCH_CHECK(!bytes.empty() && bytes.size() % (8 * seq_length) == 0, path, ": has ", bytes.size(),
              " bytes, expected samples of ", seq_length, " int64");
  const auto samples = static_cast<int64_t>(bytes.size()) / 8 / seq_length;
  torch::Tensor tokens = torch::empty({samples, seq_length}, torch::kLong);
  std::memcpy(tokens.data_ptr(), bytes.data(), bytes.size());
  return tokens;
}

// Runs through all stages. Returns [b, s, v] on the last one, an undefined tensor elsewhere.
torch::Tensor logits_of(GptModel& model, const ProcessGrid& grid, const torch::Tensor& tokens,
                        int64_t vocab_size) {
  torch::Tensor hidden;
  if (!grid.is_first_stage()) {
    hidden = model.empty_hidden();
    grid.pp->exchange({}, 0, hidden, grid.coord.pp - 1);
  }
  const torch::Tensor out = model.forward(hidden, {.inputs = tokens}).contiguous();
  if (!grid.is_last_stage()) {
    grid.pp->exchange(out, grid.coord.pp + 1, {}, 0);
    return {};
  }
  torch::Tensor parts = torch::empty({grid.tp->size(), out.size(0), out.size(1), out.size(2)});
  grid.tp->all_gather(parts, out);
  return parts.permute({1, 2, 0, 3}).flatten(2).narrow(2, 0, vocab_size).contiguous();
}

struct CommandLine {
  explicit CommandLine(const std::vector<std::string>& args) {
    add_flags(flags, config);
    add_flags(flags, gpt);
    parse(flags, config, {args.begin() + 2, args.end()});
    gpt.vocab_size = vocabulary_of(config.data).size;
  }
  Config config;
  GptConfig gpt;
  FlagTable flags{"gpt_logits", "Writes the logits of a checkpoint's model."};
};

void run(const std::vector<std::string>& args, const CommPtr& world) {
  CommandLine line(args);
  auto& [config, gpt, flags] = line;
  validate(config, gpt, world->size());
  gpt = resolved(gpt);
  const torch::Tensor tokens = read_tokens(args[0], gpt.seq_length);
  const BatchPlan plan = plan_batches(config, world->size());
  const ProcessGrid grid(world, config.parallel.topology(plan.dp, gpt.num_layers));
  GptModel model(gpt, grid, torch::kFloat, tokens.size(0), config.run.seed);
  Engine engine(model, grid,
                {.model = model_facts(gpt, config.parallel.tp), .settings = flags.settings()});
  const LoadResult loaded = engine.load_checkpoint(
      config.checkpoint.load,
      {.load_module_only = true, .universal = config.checkpoint.universal_checkpoint});
  TORCH_CHECK(loaded.path, loaded.report.back());
  const c10::InferenceMode no_gradients;
  const torch::Tensor logits = logits_of(model, grid, tokens, gpt.vocab_size);
  if (!grid.is_last_stage() || grid.coord.tp != 0 || grid.coord.dp != 0) return;
  std::ofstream(args[1], std::ios::binary)
      .write(static_cast<const char*>(logits.data_ptr()),
             static_cast<std::streamsize>(logits.nbytes()));
}

}  // namespace
}  // namespace anymesh

int main(int argc, char** argv) {
  std::optional<anymesh::MpiEnvironment> mpi;
  if (anymesh::started_by_launcher()) mpi.emplace(&argc, &argv);
  try {
    TORCH_CHECK(argc > 2, "usage: gpt_logits TOKENS LOGITS [flags of pretrain_gpt]");
    const std::vector<std::string> args(argv + 1, argv + argc);
    const auto run = [&](const anymesh::Job& job) { anymesh::run(args, job.world()); };
    if (mpi)
      run(*mpi);
    else
      anymesh::run_on_threads(std::max(1, anymesh::CommandLine(args).config.run.local_ranks), run);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpt_logits: %s\n", error.what());
    if (mpi) mpi->abort(1);
    return 1;
  }
}
