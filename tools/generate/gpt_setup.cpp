#include "tools/generate/gpt_setup.h"

#include <c10/util/StringUtil.h>

#include <algorithm>

#include "framework/config/require.h"
#include "framework/util/errors.h"
#include "tools/hf/gpt/args.h"

namespace anymesh {
namespace {

constexpr const char* kDescription =
    R"(Writes text from a checkpoint, token by token as it comes, on one process.

  generate --load checkpoints --prompts "In the beginning" --temperature 0.8

Weights alone, as zero_to_fp32 writes them, need their model's flags too, which are those of
pretrain_gpt. A checkpoint has its model's flags itself. The texts go to stdout.

)";

// Returns the checkpoint's model. Vocabulary and width must fit the checkpoint's table, so that
// nothing larger than the checkpoint is ever made.
GptConfig model_of(const CheckpointReader& checkpoint, const GptFlags& flags) {
  const std::string path = checkpoint.path.string();
  GptConfig gpt = flags.gpt;
  if (const Value args = args_of(checkpoint)) {
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

}  // namespace

GptFlags parse_gpt_flags(const std::vector<std::string>& args) {
  GptFlags flags;
  static_cast<GenerateFlags&>(flags) = parse_generate_flags(
      "generate", kDescription, args, [&](FlagTable& table) { add_flags(table, flags.gpt); });
  return flags;
}

GptSetup set_up_gpt(const GptFlags& flags) {
  GptSetup setup;
  open_checkpoint(flags, setup);
  setup.gpt = model_of(setup.checkpoint, flags);
  read_prompts(flags, setup.gpt.vocab_size, setup);
  fit_window(flags, setup.gpt.seq_length, setup);
  fit_positions(setup);
  setup.gpt = resolved(setup.gpt);
  return setup;
}

}  // namespace anymesh
