#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <tuple>

#include "framework/config/parse.h"
#include "framework/config/require.h"
#include "framework/util/format.h"
#include "framework/util/memory_sizes.h"
#include "framework/util/parse_number.h"
#include "framework/util/shell_word.h"
#include "tools/plan/mesh_plan.h"

namespace anymesh {
namespace {

constexpr size_t kRates = 4;
using Row = std::array<double, kRates>;  // seconds of a step, if one rate is 1 and others take none

// Returns a machine of which one rate is 1, and the others take no time.
Machine unit_machine(size_t rate) {
  constexpr double kFree = 1e30;
  const auto value = [&](size_t i) { return i == rate ? 1 : kFree; };
  return {.tflops = value(0),
          .efficiency = 1,
          .nvlink = value(1),
          .network = value(1),
          .memory_bandwidth = value(2),
          .link_efficiency = 1,
          .latency = rate == 3 ? 1.0 : 0.0};
}

// Trains with these flags for some steps. Returns the seconds of the fastest.
double fastest_step(const std::string& trainer, const std::string& flags,
                    const std::filesystem::path& folder) {
  const std::string csv = folder / "run.csv", log = folder / "run.log";
  std::filesystem::remove(csv);
  const std::string command = shell_word(trainer) + " " + flags + " --loss-csv " + shell_word(csv) +
                              " >" + shell_word(log) + " 2>&1";
  require(std::system(command.c_str()) == 0, "--measure: the trainer failed; see ", log, ": ",
          command);
  std::ifstream in(csv);
  double least = HUGE_VAL;
  int row = 0;
  for (std::string line; std::getline(in, line);)
    if (++row > 4)  // the header and the first steps
      least =
          std::min(least, parse_number<double>(line.substr(line.rfind(',') + 1)).value_or(least));
  require(std::isfinite(least), "--measure: ", csv, " has no steps");
  return least / 1e3;
}

// Returns x >= 0 with the least sum of squares of rows x - 1.
Row least_squares(const std::vector<Row>& rows) {
  Row x{};
  for (int sweep = 0; sweep < 20000; ++sweep)
    for (size_t i = 0; i < kRates; ++i) {
      double slope = 0, square = 0;
      for (const Row& row : rows) {
        double rest = 1;
        for (size_t j = 0; j < kRates; ++j) rest -= row[j] * x[j];
        slope += row[i] * rest;
        square += row[i] * row[i];
      }
      if (square > 0) x[i] = std::max(0.0, x[i] + slope / square);
    }
  return x;
}

}  // namespace

Machine measured_machine(const std::string& trainer, int ranks) {
  require(ranks >= 2, "--gpus (", ranks, "): --measure needs at least 2 ranks, which communicate");
  const int hidden = 64 * ranks * std::max(1, 4 / ranks);
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("anymesh_plan." + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  std::vector<Row> rows;
  // Layers, micro-batch, samples of a rank, and the mesh.
  for (const auto& [layers, micro, samples, mesh] : {std::tuple(4, 1, 2, "dp0"),
                                                     {4, 1, 8, "dp0"},
                                                     {8, 4, 4, "dp0"},
                                                     {4, 1, 8, "dp2"},
                                                     {4, 1, 4, "tp"},
                                                     {8, 4, 4, "tp"},
                                                     {4, 1, 4, "tpsp"},
                                                     {4, 2, 8, "dp3"}}) {
    const bool tp = mesh[0] == 't';
    std::string flags = string_printf(
        "--num-layers %d --hidden-size %d --num-attention-heads %d --seq-length 128 "
        "--max-position-embeddings 128 --vocab-size 1024 --attention-dropout 0 --hidden-dropout 0 "
        "--micro-batch-size %d --global-batch-size %d",
        layers, hidden, hidden / 64, micro, samples * ranks);
    flags += tp ? " --tensor-model-parallel-size " + std::to_string(ranks)
                : std::string(" --zero-stage ") + mesh[2];
    if (mesh == std::string("tpsp")) flags += " --sequence-parallel";
    Config config;
    GptConfig gpt;
    FlagTable table("", "");
    add_flags(table, config);
    add_flags(table, gpt);
    const std::string run =
        " --mock-data --lr 1e-4 --train-iters 12 --eval-iters 0 --local-ranks " +
        std::to_string(ranks);
    parse(table, config, shell_words(flags + run));
    gpt.vocab_size = config.data.vocab_size;
    std::string refused;
    const std::vector<MeshChoice> all = legal_meshes(config, gpt, table, ranks, refused);
    const auto wanted = std::ranges::find_if(all, [&](const MeshChoice& choice) {
      return choice.step.mesh.tp_size == (tp ? ranks : 1) && choice.step.mesh.pp_size == 1 &&
             choice.step.zero_stage == config.engine.zero.stage &&
             choice.step.sequence_parallel == config.parallel.sequence_parallel &&
             !choice.step.activation_checkpointing;
    });
    require(wanted != all.end(), "--measure: ", refused);
    std::cerr << "measuring " << wanted->name << ", " << layers << " layers" << std::flush;
    const double seconds = fastest_step(trainer, flags + run, folder);
    std::cerr << ": " << string_printf("%.1f ms\n", 1e3 * seconds);
    Row& row = rows.emplace_back();
    for (size_t i = 0; i < kRates; ++i)
      row[i] = plan_of(*wanted, gpt, unit_machine(i)).time.sum() / seconds;
  }
  std::filesystem::remove_all(folder);
  const Row x = least_squares(rows);
  double worst = 0;
  for (const Row& row : rows) {
    double sum = 0;
    for (size_t i = 0; i < kRates; ++i) sum += row[i] * x[i];
    worst = std::max(worst, std::abs(sum - 1));
  }
  std::cerr << string_printf("the rates below give these times within %.0f %%\n", 100 * worst);
  const auto rate = [&](size_t i) { return 1 / std::max(x[i], 1e-6); };
  return {.gpus = ranks,
          .memory = static_cast<double>(machine_memory()) / ranks / (1 << 30),
          .tflops = rate(0),
          .efficiency = 1,
          .nvlink = rate(1),
          .network = rate(1),
          .memory_bandwidth = rate(2),
          .link_efficiency = 1,
          .latency = x[3]};
}

}  // namespace anymesh
