// generate: text from a checkpoint, by one process.
//
//   generate --load checkpoints --prompts "In the beginning" --temperature 0.8
//
// The texts go to stdout as they come, all else to stderr.
#include <c10/util/StringUtil.h>

#include <chrono>
#include <cstdio>

#include "framework/checkpoint/format/whole_checkpoint.h"
#include "framework/checkpoint/fp32.h"
#include "framework/config/command_line.h"
#include "framework/data/utf8.h"
#include "models/gpt/generation/decoder.h"
#include "models/gpt/generation/sampler.h"
#include "tools/generate_setup.h"
#include "tools/run_tool.h"

namespace anymesh {
namespace {

double seconds_of(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

// The generation of one text after the other by one model.
class Writer {
 public:
  Writer(const GptModel& model, const Tokenizer& tokenizer, const GenerateFlags& flags)
      : decoder_(model), tokenizer_(tokenizer), flags_(flags) {}

  void write(const Prompt& prompt) {
    decoder_.clear();
    ids_ = prompt.ids;
    Sampler sampler(flags_.sampling);
    Utf8Stream stream;
    print(stream.take(prompt.text));
    auto start = std::chrono::steady_clock::now();
    std::vector<float> logits = read(ids_.size());
    const double reading = seconds_of(start);
    start = std::chrono::steady_clock::now();
    int tokens = 0;
    while (true) {
      ids_.push_back(sampler.next(logits));
      ++tokens;
      if (ids_.back() == tokenizer_.eod()) break;
      print(stream.take(tokenizer_.decode({&ids_.back(), 1})));
      if (tokens == flags_.num_tokens) break;
      logits = read(1);
    }
    print(stream.finish() + "\n");
    report(prompt, reading, tokens, seconds_of(start));
  }

 private:
  // The logits behind the last `fresh` tokens of ids_, which the decoder has not read yet.
  std::vector<float> read(size_t fresh) {
    if (flags_.recompute) decoder_.clear();
    const size_t count = flags_.recompute ? ids_.size() : fresh;
    const torch::Tensor tokens =
        torch::tensor(torch::ArrayRef<int32_t>(ids_).slice(ids_.size() - count), torch::kLong);
    const torch::Tensor logits = decoder_.append(tokens.unsqueeze(0)).contiguous();  // [1, v]
    const auto* data = logits.const_data_ptr<float>();
    return {data, data + logits.numel()};
  }

  // The first token comes of reading the prompt.
  void report(const Prompt& prompt, double reading, int tokens, double writing) const {
    std::fprintf(stderr, "generate: read %zu tokens in %.3f s, wrote %d%s", prompt.ids.size(),
                 reading, tokens, ids_.back() == tokenizer_.eod() ? " up to <|endoftext|>" : "");
    if (tokens > 1)
      std::fprintf(stderr, ", %d of them in %.3f s: %.1f tokens/s", tokens - 1, writing,
                   (tokens - 1) / writing);
    std::fprintf(stderr, "\n");
  }

  Decoder decoder_;
  const Tokenizer& tokenizer_;
  const GenerateFlags& flags_;
  std::vector<int32_t> ids_;
};

int generate(const GenerateFlags& flags) {
  MpiEnvironment mpi(nullptr, nullptr);
  const ProcessGrid grid(mpi.world(), {});
  GenerateSetup setup = set_up(flags);
  for (const std::string& note : setup.notes)
    std::fprintf(stderr, "generate: note: %s\n", note.c_str());
  GptModel model(setup.gpt, grid, torch::kFloat, /*micro_batch_size=*/1, /*seed=*/0);
  load_weights(model, grid, setup);
  Writer writer(model, *setup.tokenizer, flags);
  for (const Prompt& prompt : setup.prompts) writer.write(prompt);
  return 0;
}

}  // namespace
}  // namespace anymesh

int main(int argc, char** argv) {
  return anymesh::run_tool(
      "generate", 1,
      [&] {
        return anymesh::parse_generate_flags({argv + 1, argv + argc});
      },
      [](const anymesh::GenerateFlags& flags) {
        try {
          return anymesh::generate(flags);
        } catch (const c10::Error& error) {
          throw std::runtime_error(error.what_without_backtrace());
        }
      });
}
