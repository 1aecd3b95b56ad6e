#pragma once

#include <c10/util/Exception.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "framework/comm/process_grid.h"
#include "framework/comm/thread_job.h"
#include "framework/config/flags.h"
#include "framework/data/tokenizers/tokenizer.h"
#include "framework/format/whole.h"
#include "framework/pipeline/text_model.h"
#include "framework/util/plain_words.h"
#include "tools/generate/sampler.h"
#include "tools/hf/args.h"
#include "tools/run_tool.h"

namespace anymesh {

// Programs that write text share these flags and steps, whatever their model. Flags that Megatron's
// text generation has are spelled as there.
struct GenerateFlags {
  std::string load, load_tag, pretrained_checkpoint;
  std::vector<std::string> prompts;
  int num_tokens = 30;  // Megatron's default
  int window = 0;       // 0: the model's seq_length
  SamplingOptions sampling;
  bool recompute = false, prepend_bos = false;
  TokenizerChoice tokenizer;         // empty fields: the checkpoint's
  std::string model_flag;            // the first model flag given; empty: none
  std::vector<std::string> ignored;  // Megatron's flags given that change no result here
};

// Parses the flags, or prints --help and exits. The help leaves out the flags that
// `add_model_flags` declares. Throws UserError.
GenerateFlags parse_generate_flags(const std::string& program, const std::string& description,
                                   const std::vector<std::string>& args,
                                   const std::function<void(FlagTable&)>& add_model_flags = {});

struct Prompt {
  std::string text;
  std::vector<int32_t> ids;  // never empty: a text without a prompt begins behind bos()
};

// Everything but the model. Only metadata has been read, nothing of the model's size.
struct TextSetup {
  Checkpoint checkpoint;
  std::optional<Checkpoint> base;  // has what `checkpoint`, an adapter, was saved without
  std::unique_ptr<Tokenizer> tokenizer;
  std::vector<Prompt> prompts;
  int window = 0;                  // tokens that the model reads at a time
  int64_t longest = 0;             // tokens of the longest text
  std::vector<std::string> notes;  // for the user, a line each
};

// The steps of a setup, in this order.
void open_checkpoint(const GenerateFlags& flags, TextSetup& setup);
// Opens the tokenizer of the flags, else the checkpoint's. Throws if it has more tokens than the
// model. A model may have more: padding, which is never drawn.
void read_prompts(const GenerateFlags& flags, int vocab_size, TextSetup& setup);
// A window longer than the training samples gets a note.
void fit_window(const GenerateFlags& flags, int seq_length, TextSetup& setup);

void print_notes(const std::string& program, const TextSetup& setup);

// Fills the model in fp32 from the checkpoint's masters, and its base's. Throws for parameters that
// are missing, left over or of another shape.
void load_weights(StageModule& model, const ProcessGrid& grid, const TextSetup& setup);

// Writes a text behind each of setup.prompts to stdout, the first as it comes, and the times to
// stderr. All texts are read up to the same position. There, a text whose prompt goes on takes its
// next token, and the others draw theirs. So nothing is padded, and each text is the same as if it
// were written alone.
void write_texts(TextModel& model, const TextSetup& setup, const GenerateFlags& flags);

// Runs work(parse(args), grid) on one rank, and returns the program's exit status.
template <class Parse, class Work>
int run_on_one_rank(const char* program, int argc, char** argv, Parse parse, Work work) {
  return run_tool(
      program, 1, argc, argv,
      [&](int count, char** words) {
        return parse(std::vector<std::string>(words + 1, words + count));
      },
      [&](const auto& flags) {
        try {
          run_on_threads(1, [&](const Job& job) { work(flags, ProcessGrid(job.world(), {})); });
          return 0;
        } catch (const c10::Error& error) {
          throw_error(plain_words(error.what_without_backtrace()));
        }
      });
}

}  // namespace anymesh
