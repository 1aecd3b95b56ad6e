#include "framework/run/datasets.h"

#include <numeric>
#include <optional>

#include "framework/config/require.h"
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

// Compares the order of the data with that of the loaded run. Returns the stretches prepared so
// far.
DataOrder order_so_far(const Config& config, const TrainState& state, Datasets& data) {
  const auto theirs_of = [&](const std::string& flag) {
    for (const auto& [name, value] : state.data->facts)
      if (name == flag) return value;
    return std::string("absent");
  };
  if (!state.data) return {};
  std::string differences;
  for (const auto& [flag, ours] : data.order.facts)
    if (const std::string theirs = theirs_of(flag); theirs != ours)
      differences += "\n  " + flag + ": checkpoint " + theirs + ", this run " + ours;
  if (differences.empty()) return *state.data;
  const std::string count = std::to_string(state.consumed_train_samples);
  if (!config.checkpoint.allow_other_data)
    throw_error("--load ", config.checkpoint.load, ": the data or their order differ:", differences,
                "\nThe checkpoint's run has read ", count,
                " samples. Give its flags and files; or ", "--allow-other-data to go on at sample ",
                count, " of this run's order, or ", "--finetune to begin at sample 0");
  data.notes.push_back("--allow-other-data: the run goes on at sample " + count +
                       " of another order:" + differences);
  return {};
}

int64_t sum(const std::vector<int64_t>& stretches) {
  return std::accumulate(stretches.begin(), stretches.end(), int64_t{0});
}

// Adds a stretch if the run reads more samples than are prepared.
std::vector<int64_t> extended(std::vector<int64_t> stretches, int64_t wanted) {
  if (const int64_t more = wanted - sum(stretches); more > 0) stretches.push_back(more);
  return stretches;
}

// A generated sample depends on its number alone, so there is one stretch.
void make_mock(const Config& config, const ModelFacts& model, Datasets& data) {
  data.order.train = {sum(data.order.train)};
  data.order.valid = {sum(data.order.valid)};
  const auto make = [&](const std::vector<int64_t>& stretches, uint64_t seed) {
    return std::make_unique<MockDataset>(sum(stretches), model.seq_length, config.data.vocab_size,
                                         seed);
  };
  data.train = make(data.order.train, config.run.seed);
  if (data.counts.valid > 0) data.valid = make(data.order.valid, config.run.seed + 1);
}

void read_corpora(const Config& config, const ModelFacts& model, const GptCorpora& corpora,
                  Datasets& data) {
  const auto part = [&](size_t number, const std::vector<int64_t>& stretches, const char* name) {
    return std::make_unique<InVocabulary>(corpora.part(number, stretches, name), model.vocab_size);
  };
  data.train = part(0, data.order.train, "train");
  if (data.counts.valid == 0) return;
  if (corpora.documents(1) > 0) {
    data.valid = part(1, data.order.valid, "valid");
    return;
  }
  const std::string none = "--split \"" + config.data.split + "\" leaves none of " +
                           std::to_string(corpora.documents(0) + corpora.documents(2)) +
                           " documents to validate on";
  const std::string asks = config.run.eval_given
                               ? with("--eval-iters", config.run.eval_iters) + " asks"
                               : "--verify-resume asks";
  if (config.run.eval_given || config.checkpoint.verify_resume)
    throw_error(none, ", but ", asks,
                " for some; give --eval-iters 0, or the second part of --split more");
  data.order.valid.clear();
  data.notes.push_back(none + ": the run trains without validation");
}

}  // namespace

Datasets make_datasets(const Config& config, const BatchPlan& plan, const TrainState& state,
                       const ModelFacts& model) {
  Datasets data{.counts = samples_to_read(config, plan, state)};
  std::optional<GptCorpora> corpora;
  if (config.data.mock_data) {
    data.order.facts = {{"--vocab-size", std::to_string(config.data.vocab_size) + " generated"},
                        {"--seq-length", std::to_string(model.seq_length)},
                        {"--seed", std::to_string(config.run.seed)}};
  } else {
    corpora.emplace(config.data.data_path, config.data.split, model.seq_length,
                    static_cast<uint32_t>(config.run.seed));
    data.order.facts = corpora->describe();
  }
  const DataOrder before = order_so_far(config, state, data);
  data.order.train = extended(before.train, data.counts.train);
  data.order.valid = extended(before.valid, data.counts.valid);
  if (corpora)
    read_corpora(config, model, *corpora, data);
  else
    make_mock(config, model, data);
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
