#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

#include "framework/data/utf8_stream.h"
#include "framework/util/stopwatch.h"
#include "tools/generate/setup.h"

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

class Writer {
 public:
  Writer(TextModel& model, const TextSetup& setup, const GenerateFlags& flags)
      : model_(model),
        window_(setup.window),
        tokenizer_(*setup.tokenizer),
        ends_(tokenizer_.text_ends()),
        flags_(flags) {}

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
  // the model has not read.
  torch::Tensor read(size_t length) {
    const size_t start = window_start(length);
    if (std::exchange(start_, start) != start || flags_.recompute) model_.clear();
    const size_t first = start + static_cast<size_t>(model_.length()), count = length - first;
    torch::Tensor tokens =
        torch::zeros({std::ssize(texts_), static_cast<int64_t>(count)}, torch::kLong);
    for (size_t i = 0; i < texts_.size(); ++i)  // a text that has ended gets zeros
      for (size_t t = first; t < std::min(length, texts_[i].ids.size()); ++t)
        tokens[i][t - first] = texts_[i].ids[t];
    return model_.append(tokens).contiguous();
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
      const bool ends = std::ranges::find(ends_, token) != ends_.end();
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

  TextModel& model_;
  size_t window_, start_ = 0;  // tokens that the model reads at most, and the first of them
  const Tokenizer& tokenizer_;
  std::vector<int32_t> ends_;  // tokens that end a text
  const GenerateFlags& flags_;
  std::vector<Text> texts_;
  size_t printing_ = 0;  // index into texts_
};

}  // namespace

void write_texts(TextModel& model, const TextSetup& setup, const GenerateFlags& flags) {
  Writer(model, setup, flags).write(setup.prompts);
}

}  // namespace anymesh
