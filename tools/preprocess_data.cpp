// preprocess_data: tokenizes text to PREFIX_KEY_document.{bin,idx}, the token files that training
// maps into memory. Takes Megatron's flags.
//
//   preprocess_data --input corpus.jsonl --output-prefix corpus --tokenizer-type GPT2BPETokenizer
//                   --vocab-file vocab.json --merge-file merges.txt --append-eod --workers 8
//
// Workers take batches of documents in turn, tokenize them side by side and write them in the order
// of the input, so the files do not depend on --workers.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cxxopts.hpp>
#include <deque>
#include <exception>
#include <filesystem>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "framework/config/foreign_flags.h"
#include "framework/data/indexed_dataset.h"
#include "framework/data/inputs/document_reader.h"
#include "framework/data/inputs/input_list.h"
#include "framework/data/tokenizers/tokenizer.h"
#include "framework/format/folder.h"
#include "framework/util/format.h"
#include "framework/util/parallel_for.h"
#include "framework/util/parse_number.h"
#include "framework/util/stopwatch.h"
#include "tools/preprocess/document_texts.h"
#include "tools/preprocess/input_flags.h"
#include "tools/progress_line.h"
#include "tools/run_tool.h"

namespace anymesh {
namespace {

struct Options {
  std::vector<std::string> inputs;
  std::vector<std::string> json_keys;
  std::optional<DocumentUnit> unit;  // for text; none: JSON lines
  std::string output_prefix;
  std::string tokenizer_type, vocab_file, merge_file, tokenizer_model;
  TiktokenOptions tiktoken;
  bool around_texts = true, prepend_bos = false, append_eod = false, count_eod = false;
  std::string on_bad_line;
  int workers = 1;
};

struct Batch {
  DocumentReader::Batch input;
  int64_t documents = 0;                     // without lines that are skipped
  std::vector<std::vector<int32_t>> tokens;  // document d and key k are at d * keys + k
  BadLines bad_lines;
  std::exception_ptr error;
};

// Claims the sole right to write PREFIX.bin and .idx. Tokens carry no mark of their format; only
// the index beside them tells.
std::optional<OutputLock> claim(const std::string& prefix) {
  namespace fs = std::filesystem;
  auto lock = claim_output("--output-prefix", prefix + ".idx", {"an index of tokens", "MMIDIDX"});
  IndexedDatasetBuilder::finish_interrupted(prefix);
  const fs::path tokens = prefix + ".bin";
  if (fs::exists(tokens) && !fs::exists(prefix + ".idx") && fs::file_size(tokens) > 0)
    throw_error("--output-prefix: ", tokens.string(),
                " exists without an .idx beside it that says it is of tokens; it would "
                "be replaced. Move it away, or give another prefix");
  return lock;
}

// The token files of one key and how often each token occurs in them.
struct Output {
  std::string prefix;
  std::optional<OutputLock> lock;
  IndexedDatasetBuilder builder;
  std::vector<int64_t> counts;

  Output(const std::string& path, int32_t vocab_size)
      : prefix(path),
        lock(claim(path)),
        builder(path, token_type_for_vocabulary(vocab_size)),
        counts(vocab_size) {}

  int64_t tokens() const { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }

  // In nats: the loss of the best model that ignores context.
  double unigram_entropy() const {
    const double total = static_cast<double>(tokens());
    double entropy = 0;
    for (const int64_t count : counts)
      if (count > 0) entropy -= count / total * std::log(count / total);
    return entropy;
  }
};

class Preprocessor {
 public:
  Preprocessor(const Options& options, const ProgressCallback& progress)
      : options_(options),
        texts_{options.inputs, options.json_keys, !options.unit, options.on_bad_line},
        reader_(options.inputs, options.unit.value_or(DocumentUnit::kLine)),
        progress_(size_on_disk(options.inputs).value_or(0), progress) {
    check_inputs(options.inputs);
    first_ = tokenizer();
    vocab_size_ = first_->vocab_size();
    for (const std::string& key : options.json_keys)
      outputs_.emplace_back(options.output_prefix + "_" + key + "_document", vocab_size_);
  }

  void run() {
    parallel_for(options_.workers, options_.workers, [this](size_t) { work(); });
    if (documents_ == 0)
      throw_error("--input ", joined(options_.inputs, " "), ": has no documents\n",
                  summary(bad_lines_));
    for (Output& output : outputs_) output.builder.finish();
  }

  void report() const {
    const double seconds = seconds_since(start_), megabytes = static_cast<double>(bytes_) / 1e6;
    std::printf("%ld documents, %.2f MB in %.2f s, %.1f MB/s\n", documents_, megabytes, seconds,
                megabytes / seconds);
    std::printf("%s", summary(bad_lines_).c_str());
    for (const Output& output : outputs_) {
      std::printf(
          "%s.{bin,idx}: %ld tokens of %d bytes, vocabulary %d\n"
          "unigram entropy: %.4f nats/token\n",
          output.prefix.c_str(), output.tokens(),
          token_bytes(token_type_for_vocabulary(vocab_size_)), vocab_size_,
          output.unigram_entropy());
    }
  }

 private:
  std::unique_ptr<Tokenizer> tokenizer() const {
    return make_tokenizer(options_.tokenizer_type, options_.vocab_file, options_.merge_file,
                          options_.tokenizer_model, options_.tiktoken);
  }

  void work() {
    try {
      process_batches();
    } catch (...) {
      std::lock_guard lock(write_mutex_);
      stop_ = true;
      turn_changed_.notify_all();
      throw;
    }
  }

  // A batch with an error waits for its turn too, so that the first error in the input is reported.
  void process_batches() {
    std::unique_ptr<Tokenizer> own;  // loading one takes time, so not before there is work for it
    while (true) {
      Batch batch;
      if (!read(batch, own)) return;
      try {
        if (!own) own = tokenizer();
        if (!batch.error) tokenize(batch, *own);
      } catch (...) {
        batch.error = std::current_exception();
      }
      std::unique_lock lock(write_mutex_);
      turn_changed_.wait(lock, [&] { return stop_ || turn_ == batch.input.number; });
      if (stop_) return;
      if (batch.error) std::rethrow_exception(batch.error);
      write(batch);
      ++turn_;
      turn_changed_.notify_all();
    }
  }

  // Returns false at the end and behind an error.
  bool read(Batch& batch, std::unique_ptr<Tokenizer>& own) {
    std::lock_guard lock(read_mutex_);
    if (!own) own = std::move(first_);
    if (stop_ || reading_failed_) return false;
    try {
      return reader_.read(batch.input);
    } catch (...) {
      batch.error = std::current_exception();
      return reading_failed_ = true;
    }
  }

  void tokenize(Batch& batch, Tokenizer& tokenizer) const {
    const AroundText around = options_.around_texts ? tokenizer.around_text() : AroundText();
    for (const Document& document : batch.input.documents) {
      const std::vector<std::string> texts = texts_.of(document, batch.bad_lines);
      batch.documents += !texts.empty();
      for (const std::string& text : texts) {
        auto& tokens = batch.tokens.emplace_back(encoded(document, text, tokenizer));
        tokens.insert(tokens.begin(), around.before.begin(), around.before.end());
        tokens.insert(tokens.end(), around.behind.begin(), around.behind.end());
        if (tokens.empty()) continue;
        if (options_.prepend_bos && around.before.empty())
          tokens.insert(tokens.begin(), tokenizer.bos());
        if (options_.append_eod) tokens.push_back(tokenizer.eod());
      }
    }
  }

  std::vector<int32_t> encoded(const Document& document, const std::string& text,
                               Tokenizer& tokenizer) const {
    try {
      return tokenizer.encode(text);
    } catch (const UserError& error) {
      throw_error(texts_.place(document), ": ", error.what());
    }
  }

  // REQUIRES: the caller holds write_mutex_.
  void write(const Batch& batch) {
    for (size_t i = 0; i < batch.tokens.size(); ++i) {
      const auto& tokens = batch.tokens[i];
      Output& output = outputs_[i % outputs_.size()];
      const bool uncounted_eod = options_.append_eod && !options_.count_eod && !tokens.empty();
      output.builder.add_document(tokens, std::ssize(tokens) - uncounted_eod);
      for (const int32_t token : tokens) ++output.counts[token];
    }
    documents_ += batch.documents;
    for (const auto& [way, lines] : batch.bad_lines) count_bad_lines(way, lines, bad_lines_);
    bytes_ += batch.input.bytes;
    progress_.add(batch.input.file_bytes);
  }

  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  Options options_;
  DocumentTexts texts_;
  std::unique_ptr<Tokenizer> first_;  // for the worker that comes first
  int32_t vocab_size_ = 0;
  std::deque<Output> outputs_;  // one per key

  std::mutex read_mutex_;
  DocumentReader reader_;
  bool reading_failed_ = false;

  std::mutex write_mutex_;
  std::condition_variable turn_changed_;
  int64_t turn_ = 0;
  int64_t documents_ = 0, bytes_ = 0;  // of input that is written
  BadLines bad_lines_;
  ProgressCounter progress_;
  std::atomic<bool> stop_ = false;
};

int preprocess(const Options& options) {
  with_progress([&](const ProgressCallback& progress) {
    auto preprocessor = std::make_unique<Preprocessor>(options, progress);
    preprocessor->run();
    return preprocessor;
  })->report();
  return 0;
}

int parse_workers(const std::string& text) {
  const int workers = parse_number<int>(text).value_or(-1);
  if (workers < 0 || workers > 1024) throw_error("--workers ", text, ": expected 0 to 1024");
  return workers > 0 ? workers
                     : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

TiktokenOptions parse_tiktoken(const cxxopts::ParseResult& parsed) {
  const auto number = [&](const char* flag) {
    const auto value = parse_number<int64_t>(text_of(parsed, flag));
    if (!value || *value < 0)
      throw_error("--", flag, " ", text_of(parsed, flag), ": expected a number");
    return *value;
  };
  for (const char* flag : {"tiktoken-pattern", "tiktoken-num-special-tokens", "vocab-size"})
    if (parsed.count(flag) > 0 && text_of(parsed, "tokenizer-type") != "TikTokenizer")
      throw_error("--", flag, " is for --tokenizer-type TikTokenizer");
  return {text_of(parsed, "tiktoken-pattern"), number("vocab-size"),
          number("tiktoken-num-special-tokens")};
}

Options parse_options(const cxxopts::ParseResult& parsed) {
  check_words(parsed, {"input", "output-prefix", "tokenizer-type"});
  const std::string format = text_of(parsed, "dataset-impl");
  if (format != "mmap") throw_error("--dataset-impl ", format, ": expected mmap");
  const auto& json_keys = parsed["json-keys"].as<std::vector<std::string>>();
  if (std::set(json_keys.begin(), json_keys.end()).size() < json_keys.size())
    throw_error("--json-keys names a key twice");
  const auto inputs = inputs_of(parsed);
  Options options{.inputs = inputs,
                  .json_keys = json_keys,
                  .unit = unit_of(parsed, inputs),
                  .output_prefix = text_of(parsed, "output-prefix"),
                  .tokenizer_type = text_of(parsed, "tokenizer-type"),
                  .vocab_file = text_of(parsed, "vocab-file"),
                  .merge_file = text_of(parsed, "merge-file"),
                  .tokenizer_model = text_of(parsed, "tokenizer-model"),
                  .tiktoken = parse_tiktoken(parsed),
                  .around_texts = !parsed["tokenizer-hf-no-include-special-tokens"].as<bool>(),
                  .prepend_bos = parsed["prepend-bos"].as<bool>(),
                  .append_eod = parsed["append-eod"].as<bool>(),
                  .count_eod = parsed["count-eod"].as<bool>(),
                  .on_bad_line = text_of(parsed, "on-bad-line"),
                  .workers = parse_workers(text_of(parsed, "workers"))};
  if (!is_one_of(options.on_bad_line, "error|skip|replace"))
    throw_error("--on-bad-line ", options.on_bad_line, ": expected error, skip or replace");
  if (options.count_eod && !options.append_eod) throw_error("--count-eod needs --append-eod");
  return options;
}

Options parse(int argc, char** argv) {
  cxxopts::Options flags("preprocess_data",
                         "Text to the token files that training reads.\n\n" + foreign_flags_help());
  flags.custom_help("--input FILE... --output-prefix PREFIX --tokenizer-type TYPE [options]");
  const auto text = text_value(), none = text_value("");
  // clang-format off
  flags.add_options("Input")
    ("input", "FILE.jsonl (or .json) with one JSON object a line, or FILE.txt: one or more, or "
     "patterns ('corpus/*.jsonl.zst'), read in this order; .gz and .zst are unpacked. - and pipes "
     "are JSON lines, or text if --documents is given", text)
    ("json-keys", "keys to take from each object, one or more: one output for each",
     cxxopts::value<std::vector<std::string>>()->default_value("text"))
    ("documents", "unit of a document in text: file, paragraph (up to a blank line) or line",
     text_value("file"))
    ("on-bad-line", "what becomes of a line without a text, which is no JSON, has another value "
     "than a string, half a surrogate pair or bytes that are no UTF-8: error, skip, or replace "
     "(U+FFFD for the last two, others are skipped); the end of the run sums them up",
     text_value("error"));
  flags.add_options("Tokenizer")
    ("tokenizer-type", "ByteLevelTokenizer, GPT2BPETokenizer, SentencePieceTokenizer, "
     "GPTSentencePieceTokenizer, Llama2Tokenizer, HFTokenizer (HuggingFaceTokenizer is the same) "
     "or TikTokenizer", text)
    ("vocab-file", "vocab.json, for GPT2BPETokenizer", none)
    ("merge-file", "merges.txt, for GPT2BPETokenizer", none)
    ("tokenizer-model", "model of the SentencePiece tokenizers, tokenizer.json or its folder for "
     "the HFTokenizer, file for the TikTokenizer", none)
    ("tiktoken-pattern", "v1 or v2, the regular expression that splits text for the TikTokenizer",
     text_value("v2"))
    ("tiktoken-num-special-tokens", "ids of the TikTokenizer before the file's tokens",
     text_value("1000"))
    ("vocab-size", "of the TikTokenizer: it leaves out the file's tokens beyond; 0: none",
     text_value("0"))
    ("prepend-bos", "begin each document with the <s> of a SentencePiece model, as Llama's "
     "training data does (others: with the token that ends documents); the Llama2Tokenizer, and "
     "the HFTokenizer where its files say so, do it anyway")
    ("tokenizer-hf-no-include-special-tokens", "leave out what the HFTokenizer's post_processor "
     "puts around each text")
    ("append-eod", "end each document with the tokenizer's token for that, as <|endoftext|>")
    ("count-eod", "count that token in the document's length, as Megatron-LM does; "
     "Megatron-DeepSpeed does not, so its document n is read from n tokens too early");
  flags.add_options("Output")
    ("output-prefix", "writes PREFIX_text_document.bin and .idx", text)
    ("dataset-impl", "mmap, the only format", text_value("mmap"))
    ("workers", "threads; 0 for one per core", text_value("0"))
    ("help", "this text");
  // clang-format on
  std::vector<std::string> ignored;
  const auto args = repeat_flags(without_foreign_flags({argv, argv + argc}, ignored));
  std::vector<const char*> values;
  for (const std::string& arg : args) values.push_back(arg.c_str());
  Options options = parse_options(parse_flags(flags, static_cast<int>(values.size()), values.data(),
                                              {"Input", "Tokenizer", "Output"}));
  if (!ignored.empty())
    std::fprintf(stderr, "accepted from Megatron, without effect on the tokens: %s\n",
                 joined(ignored, " ").c_str());
  return options;
}

}  // namespace
}  // namespace anymesh

int main(int argc, char** argv) {
  return anymesh::run_tool("preprocess_data", 1, argc, argv, anymesh::parse, anymesh::preprocess);
}
