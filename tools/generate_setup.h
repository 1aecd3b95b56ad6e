#pragma once

#include <memory>
#include <string>
#include <vector>

#include "framework/checkpoint/format/whole_checkpoint.h"
#include "framework/data/tokenizer.h"
#include "models/gpt/generation/sampler.h"
#include "models/gpt/gpt_model.h"
#include "tools/run_tokenizer.h"

namespace anymesh {

// What generate is asked for. Flags that Megatron's text generation has are spelled as there.
struct GenerateFlags {
  std::string load, load_tag;
  std::vector<std::string> prompts;
  int num_tokens = 30;  // Megatron's default
  SamplingOptions sampling;
  bool recompute = false, prepend_bos = false;
  TokenizerChoice tokenizer;         // what is empty: the checkpoint's
  GptConfig gpt;                     // for a checkpoint that does not say
  std::string model_flag;            // the first of those that are given; empty: none
  std::vector<std::string> ignored;  // Megatron's that are given and change no result here
};

// Throws ParseError. Prints --help and exits.
GenerateFlags parse_generate_flags(const std::vector<std::string>& args);

struct Prompt {
  std::string text;
  std::vector<int32_t> ids;  // never empty: a text without a prompt begins behind bos()
};

// Everything but the weights: metadata is read, and nothing yet of the size of the model.
struct GenerateSetup {
  WholeCheckpoint checkpoint;
  GptConfig gpt;  // whose seq_length is that of the longest text
  std::unique_ptr<Tokenizer> tokenizer;
  std::vector<Prompt> prompts;
  std::vector<std::string> notes;  // for the user, a line each
};

// The model is the one of the checkpoint's args, and where it has none (weights, DeepSpeed's own)
// of the flags; the tokenizer likewise, with flags first. Throws ParseError or ValueError for a
// model that the checkpoint is not of, a tokenizer of more tokens than the model, and texts longer
// than the table of positions. A model may have more tokens, padding, which are never drawn. Rotary positions and ALiBi have none: a text that is longer than the samples
// of the training gets a note.
GenerateSetup set_up(const GenerateFlags& flags);

// Fills the model, in fp32 from the checkpoint's masters. Throws for parameters that are missing,
// left over or of another shape.
void load_weights(GptModel& model, const ProcessGrid& grid, const GenerateSetup& setup);

}  // namespace anymesh
