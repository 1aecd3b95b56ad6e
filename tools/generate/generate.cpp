// generate: writes text from a checkpoint, in one process.
//
//   generate --load checkpoints --prompts "In the beginning" --temperature 0.8
//
// The texts go to stdout, the first as it comes. Everything else goes to stderr.
// The model sees the last tokens of a text, as many as its window, at positions from 0 on.
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "framework/comm/thread_job.h"
#include "framework/data/utf8_stream.h"
#include "framework/util/stopwatch.h"
#include "models/gpt/generation/decoder.h"
#include "tools/generate/setup.h"
#include "tools/run_tool.h"

namespace anymesh {
namespace {

struct Text {
  std::vector<int32_t> ids;  // the prompt's, then the drawn ones
  Sampler sampler;
  int left;        // tokens that may still be drawn
  size_t decoded;  // bytes of decode(ids) that were streamed or are the prompt's
  Utf8Stream stream = {};
  std::string fresh = {};  // to be printed
};

// Writes several texts with one model, side by side. All are read up to the same position. There, a
// text whose prompt goes on takes its next token, and the others draw theirs. So nothing is padded,
// and each text is the same as if it were written alone.
class Writer {
 public:
  Writer(const GptModel& model, const GenerateSetup& setup, const GenerateFlags& flags)
      : decoder_(model), window_(setup.window), tokenizer_(*setup.tokenizer), flags_(flags) {}

  void write(const std::vector<Prompt>& prompts) {
    size_t length = prompts[0].ids.size();  // tokens of each text that the next one may depend on
    for (const Prompt& prompt : prompts) {
      length = std::min(length, prompt.ids.size());
      texts_.push_back({prompt.ids, Sampler(flags_.sampling), flags_.num_tokens,
                        tokenizer_.decode(prompt.ids).size()});
      texts_.back().fresh = texts_.back().stream.take(prompt.text);
    }
    const auto start = std::chrono::steady_clock::now();
    torch::Tensor logits = read(length);
    const double reading = seconds_since(start);
    extend(logits, length);
    int more = 0;
    while (!print_fresh()) {
      logits = read(++length);
      more += extend(logits, length);
    }
    const double writing = seconds_since(start) - reading;
    std::fprintf(
        stderr, "generate: first tokens in %.3f s, %d more in %.3f s: %.1f tokens/s, threads: %d\n",
        reading, more, writing, more / writing, at::get_num_threads());
  }

 private:
  // Returns the first token of a text of this length that the model sees. The window stays as long
  // as it can, then drops half of its tokens at once, so that few are read again.
  size_t window_start(size_t length) const {
    const size_t step = std::max<size_t>(1, window_ / 2);
    return length <= window_ ? 0 : (length - window_ + step - 1) / step * step;
  }

  // Returns the logits behind the first `length` tokens, [texts, v]. Reads those of the window that
  // the decoder does not hold.
  torch::Tensor read(size_t length) {
    const size_t start = window_start(length);
    if (std::exchange(start_, start) != start || flags_.recompute) decoder_.clear();
    const size_t first = start + static_cast<size_t>(decoder_.length()), count = length - first;
    torch::Tensor tokens =
        torch::zeros({std::ssize(texts_), static_cast<int64_t>(count)}, torch::kLong);
    for (size_t i = 0; i < texts_.size(); ++i)  // a text that has ended gets zeros
      for (size_t t = first; t < std::min(length, texts_[i].ids.size()); ++t)
        tokens[i][t - first] = texts_[i].ids[t];
    return decoder_.append(tokens).contiguous();
  }

  // Draws a token for each text that has been read to its end. Returns the number drawn.
  int extend(const torch::Tensor& logits, size_t length) {
    int drawn = 0;
    const auto v = static_cast<size_t>(logits.size(1)),
               known = static_cast<size_t>(tokenizer_.vocab_size());  // logits beyond are padding
    for (size_t i = 0; i < texts_.size(); ++i) {
      Text& text = texts_[i];
      if (text.left == 0 || text.ids.size() > length) continue;
      const int32_t token = text.sampler.next({logits.const_data_ptr<float>() + i * v, known});
      ++drawn;
      const bool ends = token == tokenizer_.eod();
      text.left = ends ? 0 : text.left - 1;
      if (!ends) text.ids.push_back(token);
      decode(text);
      if (text.left == 0) text.fresh += text.stream.finish() + "\n";
    }
    return drawn;
  }

  // Decodes the whole text again, since SentencePiece derives a piece's text from the pieces before
  // it. Waits while the text ends in U+FFFD, because those bytes may yet become a character.
  void decode(Text& text) const {
    const std::string all = tokenizer_.decode(text.ids);
    if (text.left > 0 && all.ends_with("\ufffd")) return;
    text.fresh += text.stream.take(all.substr(std::min(text.decoded, all.size())));
    text.decoded = all.size();
  }

  // Prints the new text of all texts up to the first unfinished one. Returns whether all have
  // ended.
  bool print_fresh() {
    for (; printing_ < texts_.size(); ++printing_) {
      const std::string fresh = std::exchange(texts_[printing_].fresh, {});
      std::fwrite(fresh.data(), 1, fresh.size(), stdout);
      std::fflush(stdout);
      if (texts_[printing_].left > 0) return false;
    }
    return true;
  }

  Decoder decoder_;
  size_t window_, start_ = 0;  // tokens that the decoder reads at most, and the first of them
  const Tokenizer& tokenizer_;
  const GenerateFlags& flags_;
  std::vector<Text> texts_;
  size_t printing_ = 0;  // index into texts_
};

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

void generate(const GenerateFlags& flags, const CommPtr& alone) {
  const ProcessGrid grid(alone, {});
  GenerateSetup setup = set_up(flags);
  for (const std::string& note : setup.notes)
    std::fprintf(stderr, "generate: note: %s\n", printable_message(note).c_str());
  set_threads(setup.gpt);
  GptModel model(setup.gpt, grid, torch::kFloat, /*micro_batch_size=*/1, /*seed=*/0);
  load_weights(model, grid, setup);
  Writer(model, setup, flags).write(setup.prompts);
}

}  // namespace
}  // namespace anymesh

int main(int argc, char** argv) {
  return anymesh::run_tool(
      "generate", 1, argc, argv,
      [](int count, char** words) {
        return anymesh::parse_generate_flags({words + 1, words + count});
      },
      [](const anymesh::GenerateFlags& flags) {
        try {
          anymesh::run_on_threads(
              1, [&](const anymesh::Job& job) { anymesh::generate(flags, job.world()); });
          return 0;
        } catch (const c10::Error& error) {
          anymesh::throw_error(error.what_without_backtrace());
        }
      });
}
