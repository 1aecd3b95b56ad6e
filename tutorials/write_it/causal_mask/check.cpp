#include "framework/comm/thread_job.h"
#include "models/gpt/attention.h"
#include "tutorials/write_it/on_ranks.h"

namespace write_it {
namespace {

using namespace anymesh;

// Returns a row for each query, "x" for a key that it sees and "." for another.
std::vector<std::string> rows(const torch::Tensor& seen, int64_t queries, int64_t keys) {
  if (!seen.defined()) return {"undefined"};
  if (seen.scalar_type() != torch::kBool || seen.sizes() != at::IntArrayRef{queries, keys})
    return {c10::str(seen.scalar_type(), " ", seen.sizes())};
  std::vector<std::string> all;
  for (int64_t i = 0; i < queries; ++i) {
    std::string& row = all.emplace_back();
    for (int64_t j = 0; j < keys; ++j) row += seen[i][j].item<bool>() ? 'x' : '.';
  }
  return all;
}

void all_lengths(const ProcessGrid& grid, int window) {
  GptConfig config;
  config.num_layers = 1;
  config.hidden_size = 16;
  config.num_attention_heads = 1;
  config.seq_length = config.max_position_embeddings = 16;
  config.vocab_size = 8;
  if (window > 0) config.window_size = std::to_string(window - 1) + ",0";
  const StageParams params(config, grid, {grid.tp}, torch::kFloat, /*seed=*/1);
  const ParallelAttention attention(params, "2.self_attention", 0, config,
                                    RelativePositions(config, *grid.tp, torch::kFloat));
  for (const int64_t first : {0, 1, 3, 6}) {
    for (const int64_t s : {4, 1, 2, 7}) {
      answer("first " + std::to_string(first) + ", s " + std::to_string(s) + ", window " +
                 std::to_string(window),
             "row", [&] { return rows(attention.visible(first, s, torch::kCPU), s, first + s); });
    }
  }
}

}  // namespace

void causal_mask() {
  run_on_threads(1, [](const Job& job) {
    const ProcessGrid grid(job.world(), {});
    for (const int window : {0, 3, 1, 2, 5, 20}) all_lengths(grid, window);
  });
}

}  // namespace write_it
