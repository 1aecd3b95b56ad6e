// generate: writes text from a checkpoint, in one process.
//
//   generate --load checkpoints --prompts "In the beginning" --temperature 0.8
//
// The texts go to stdout, the first as it comes. Everything else goes to stderr.
// The model sees the last tokens of a text, as many as its window, at positions from 0 on.
#include <ATen/Parallel.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstdlib>

#include "framework/config/require.h"
#include "framework/util/errors.h"
#include "models/gpt/generation/decoder.h"
#include "tools/generate/setup.h"
#include "tools/hf/gpt/args.h"

namespace anymesh {
namespace {

constexpr const char* kDescription =
    R"(Writes text from a checkpoint, token by token as it comes, on one process.

  generate --load checkpoints --prompts "In the beginning" --temperature 0.8

Weights alone, as zero_to_fp32 writes them, need their model's flags too, which are those of
pretrain_gpt. A checkpoint has its model's flags itself. The texts go to stdout.

)";

struct GptFlags : GenerateFlags {
  GptConfig gpt;  // for a checkpoint without args
};

struct GptSetup : TextSetup {
  GptConfig gpt;  // its seq_length has room for the longest text, or for the window
};

// Returns the checkpoint's model. Vocabulary and width must fit the checkpoint's table, so that
// nothing larger than the checkpoint is ever made.
GptConfig model_of(const TextSetup& setup, const GptFlags& flags) {
  const Checkpoint& checkpoint = setup.base ? *setup.base : setup.checkpoint;
  const std::string path = checkpoint.path.string();
  GptConfig gpt = flags.gpt;
  if (const Value args = args_of(setup.checkpoint)) {
    require(flags.model_flag.empty(), "--" + flags.model_flag + ": " + path +
                                          " has the model's flags itself; drop them here");
    gpt = gpt_of_args(args);
  } else {
    try {
      validate(gpt);
    } catch (const UserError& error) {
      throw UserError(path + ": has no args, which define the model. With flags in their place: " +
                      error.what());
    }
  }
  const auto& names = checkpoint.names();
  const auto table = std::find_if(names.begin(), names.end(), [](const std::string& name) {
    return name.ends_with("word_embeddings.weight");
  });
  if (table == names.end())
    throw DamagedFile(path + ": has no word_embeddings.weight, so it is of no GPT of ours");
  const Shape shape = checkpoint.parameter(*table).shape;
  if (shape.size() != 2 || shape[1] != gpt.hidden_size || shape[0] < 1 || shape[0] > INT32_MAX)
    throw DamagedFile(path + ": " + *table + " is " + to_string(shape) +
                      ", expected [vocabulary, " + std::to_string(gpt.hidden_size) +
                      "], as --hidden-size says");
  if (static_cast<size_t>(gpt.num_layers) > names.size())
    throw DamagedFile(path + ": has too few parameters for " + std::to_string(gpt.num_layers) +
                      " layers");
  gpt.vocab_size = static_cast<int>(shape[0]);
  gpt.make_vocab_size_divisible_by = 1;
  return gpt;
}

// Gives the model as many positions as the window needs.
void fit_positions(GptSetup& setup) {
  GptConfig& gpt = setup.gpt;
  require(
      !gpt.learned_positions() || setup.window <= gpt.max_position_embeddings,
      c10::str(with("--window", setup.window), ": the model has a learned vector for each of ",
               gpt.max_position_embeddings,
               " positions (--max-position-embeddings), and none beyond; give at most so many"));
  gpt.seq_length = static_cast<int>(std::min<int64_t>(setup.longest, setup.window));
  gpt.max_position_embeddings = std::max(gpt.max_position_embeddings, gpt.seq_length);
}

GptFlags parse_gpt_flags(const std::vector<std::string>& args) {
  GptFlags flags;
  static_cast<GenerateFlags&>(flags) = parse_generate_flags(
      "generate", kDescription, args, [&](FlagTable& table) { add_flags(table, flags.gpt); });
  return flags;
}

// Reads the model from the checkpoint's args, or from the flags if it has none (weights,
// DeepSpeed's own). Throws UserError or DamagedFile if the checkpoint is of another model, or if
// the window is longer than the table of learned positions.
GptSetup set_up_gpt(const GptFlags& flags) {
  GptSetup setup;
  open_checkpoint(flags, setup);
  setup.gpt = model_of(setup, flags);
  read_prompts(flags, setup.gpt.vocab_size, setup);
  fit_window(flags, setup.gpt.seq_length, setup);
  fit_positions(setup);
  setup.gpt = resolved(setup.gpt);
  return setup;
}

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
  load_weights(model, grid, setup);
  Decoder decoder(model);
  write_texts(decoder, setup, flags);
}

}  // namespace
}  // namespace anymesh

int main(int argc, char** argv) {
  return anymesh::run_on_one_rank("generate", argc, argv, anymesh::parse_gpt_flags,
                                  anymesh::generate);
}
