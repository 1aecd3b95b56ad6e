#pragma once

#include <memory>
#include <string>
#include <vector>

#include "framework/data/tokenizer.h"
#include "framework/format/whole.h"
#include "models/gpt/generation/sampler.h"
#include "models/gpt/gpt_model.h"
#include "tools/hf/args.h"

namespace anymesh {

// The flags of generate. Flags that Megatron's text generation has are spelled as there.
struct GenerateFlags {
  std::string load, load_tag;
  std::vector<std::string> prompts;
  int num_tokens = 30;  // Megatron's default
  int window = 0;       // 0: the model's seq_length
  SamplingOptions sampling;
  bool recompute = false, prepend_bos = false;
  TokenizerChoice tokenizer;         // empty fields: the checkpoint's
  GptConfig gpt;                     // for a checkpoint without args
  std::string model_flag;            // the first model flag given; empty: none
  std::vector<std::string> ignored;  // Megatron's flags given that change no result here
};

// Parses the flags, or prints --help and exits. Throws UserError.
GenerateFlags parse_generate_flags(const std::vector<std::string>& args);

struct Prompt {
  std::string text;
  std::vector<int32_t> ids;  // never empty: a text without a prompt begins behind bos()
};

// Everything but the weights. Only metadata has been read, nothing of the model's size.
struct GenerateSetup {
  CheckpointReader checkpoint;
  GptConfig gpt;   // its seq_length has room for the longest text, or for the window
  int window = 0;  // tokens that the model reads at a time
  std::unique_ptr<Tokenizer> tokenizer;
  std::vector<Prompt> prompts;
  std::vector<std::string> notes;  // for the user, a line each
};

// Reads the model from the checkpoint's args, or from the flags if it has none (weights,
// DeepSpeed's own). Reads the tokenizer likewise, but flags go first. Throws UserError or
// DamagedFile if the checkpoint is of another model, if the tokenizer has more tokens than the
// model, or if the window is longer than the table of learned positions. A model may have more
// tokens: padding, which is never drawn. Rotary positions and ALiBi have no table, so a window
// longer than the training samples gets a note.
GenerateSetup set_up(const GenerateFlags& flags);

// Fills the model in fp32 from the checkpoint's masters. Throws for parameters that are missing,
// left over or of another shape.
void load_weights(GptModel& model, const ProcessGrid& grid, const GenerateSetup& setup);

}  // namespace anymesh
