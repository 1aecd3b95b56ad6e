// generate: writes text from a checkpoint, in one process.
//
//   generate --load checkpoints --prompts "In the beginning" --temperature 0.8
//
// The texts go to stdout, the first as it comes. Everything else goes to stderr.
// The model sees the last tokens of a text, as many as its window, at positions from 0 on.
#include <ATen/Parallel.h>

#include <cstdlib>

#include "models/gpt/generation/decoder.h"
#include "tools/generate/gpt_setup.h"
#include "tools/generate/writer.h"

namespace anymesh {
namespace {

// A token is so little work to a small model that threads wait for each other longer than they
// save, above all where other programs want the cores. Tokens/s of 4 layers on two such cores:
//
//   hidden size      64         128        256       512      1024
//   one thread   3540-5250  1210-2900   950-1190   320-380     64-66
//   two threads  2000-5100    50-3560    60-580    140-200   130-136
void set_threads(const GptConfig& gpt) {
  constexpr int kFirstForAll = 1024;
  if (gpt.hidden_size < kFirstForAll && !std::getenv("OMP_NUM_THREADS")) at::set_num_threads(1);
}

void generate(const GptFlags& flags, const ProcessGrid& grid) {
  const GptSetup setup = set_up_gpt(flags);
  print_notes("generate", setup);
  set_threads(setup.gpt);
  GptModel model(setup.gpt, grid, torch::kFloat, /*micro_batch_size=*/1, /*seed=*/0);
  load_weights(model, grid, setup.checkpoint);
  Decoder decoder(model);
  write_texts(decoder, setup, flags);
}

}  // namespace
}  // namespace anymesh

int main(int argc, char** argv) {
  return anymesh::run_on_one_rank("generate", argc, argv, anymesh::parse_gpt_flags,
                                  anymesh::generate);
}
