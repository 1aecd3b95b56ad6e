#include "framework/run/datasets.h"

#include "framework/data/gpt_corpora.h"
#include "framework/data/mock_dataset.h"
#include "framework/data/tokenizers/tokenizer.h"
#include "framework/util/errors.h"

namespace anymesh {

namespace {

// Throws for tokens outside the vocabulary. Without a row they would train as nothing, and
// silently.
class InVocabulary final : public Dataset {
 public:
  InVocabulary(std::unique_ptr<Dataset> data, int64_t vocab_size)
      : data_(std::move(data)), vocab_size_(vocab_size) {}

  int64_t size() const override { return data_->size(); }
  int seq_length() const override { return data_->seq_length(); }
  void sample(int64_t index, std::span<int64_t> out) const override {
    data_->sample(index, out);
    for (const int64_t token : out) {
      if (token >= 0 && token < vocab_size_) continue;
      throw_error("--data-path: sample ", index, " has token ", token, ", the vocabulary has ",
                  vocab_size_, "; see --tokenizer-type, --vocab-file and --vocab-size");
    }
  }

 private:
  std::unique_ptr<Dataset> data_;
  int64_t vocab_size_;
};

// Returns the samples counted from the first one on, whatever batches and intervals have read them
// so far.
SampleCounts samples_to_read(const Config& config, const BatchPlan& plan, const TrainState& state) {
  SampleCounts counts = sample_counts(state.iteration, plan.train_iters, plan.global_batch_size,
                                      config.run.eval_interval, config.run.eval_iters);
  // With --train-samples, takes the number that Megatron prepares; a corpus's order depends on it.
  counts.train = config.batch.train_samples != 0 ? config.batch.train_samples
                                                 : counts.train + state.consumed_train_samples;
  if (config.run.eval_iters > 0) counts.valid += state.consumed_valid_samples;
  return counts;
}

}  // namespace

Datasets make_datasets(const Config& config, const BatchPlan& plan, const TrainState& state,
                       const ModelFacts& model) {
  const auto seed = config.run.seed;
  const int seq_length = model.seq_length;
  Datasets data{.counts = samples_to_read(config, plan, state)};
  const SampleCounts& counts = data.counts;
  if (config.data.mock_data) {
    data.train =
        std::make_unique<MockDataset>(counts.train, seq_length, config.data.vocab_size, seed);
    if (counts.valid > 0) {
      data.valid =
          std::make_unique<MockDataset>(counts.valid, seq_length, config.data.vocab_size, seed + 1);
    }
    return data;
  }
  const GptCorpora corpora(config.data.data_path, config.data.split, seq_length,
                           static_cast<uint32_t>(seed));
  data.train =
      std::make_unique<InVocabulary>(corpora.part(0, counts.train, "train"), model.vocab_size);
  if (counts.valid > 0) {
    if (corpora.documents(1) == 0)
      throw_error("--split \"", config.data.split, "\" leaves none of ",
                  corpora.documents(0) + corpora.documents(2),
                  " documents to validate on, but --eval-iters (", config.run.eval_iters,
                  ") asks for some; give --eval-iters 0, or the second part of --split more");
    data.valid =
        std::make_unique<InVocabulary>(corpora.part(1, counts.valid, "valid"), model.vocab_size);
  }
  return data;
}

// Megatron's NullTokenizer ends documents with the last number.
Vocabulary vocabulary_of(const DataConfig& data) {
  if (data.mock_data) return {data.vocab_size};
  if (data.tokenizer_type == "NullTokenizer") return {data.vocab_size, data.vocab_size - 1};
  const auto tokenizer =
      make_tokenizer(data.tokenizer_type, data.vocab_file, data.merge_file, data.tokenizer_model,
                     {.pattern = data.tiktoken_pattern,
                      .vocab_size = data.vocab_size,
                      .special_tokens = data.tiktoken_special_tokens});
  const int tokens = tokenizer->vocab_size(), eod = tokenizer->eod();
  if (data.tokenizer_type == "TikTokenizer" || data.vocab_size == 0) return {tokens, eod};
  if (data.vocab_size < tokens)
    throw_error("--vocab-size ", data.vocab_size, ": the ", data.tokenizer_type, " has ", tokens,
                " tokens; give at least so many");
  return {data.vocab_size, eod};
}

}  // namespace anymesh
