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

// Trains without validation, unless a flag asks for it.
void do_without_validation(const Config& config, const std::string& none, const char* fix,
                           Datasets& data) {
  const std::string asks = config.run.eval_given
                               ? with("--eval-iters", config.run.eval_iters) + " asks"
                               : "--verify-resume asks";
  if (config.run.eval_given || config.checkpoint.verify_resume)
    throw_error(none, ", but ", asks, " for some; give --eval-iters 0", fix);
  data.order.valid.clear();
  data.notes.push_back(none + ": the run trains without validation");
}

// A sample that depends on its number alone needs one stretch.
void join_stretches(DataOrder& order) {
  order.train = {sum(order.train)};
  order.valid = {sum(order.valid)};
}

void make_mock(const Config& config, const ModelFacts& model, Datasets& data) {
  join_stretches(data.order);
  const auto make = [&](const std::vector<int64_t>& stretches, uint64_t seed) {
    return std::make_unique<TokenSource>(std::make_unique<MockDataset>(
        sum(stretches), model.seq_length, config.data.vocab_size, seed));
  };
  data.train = make(data.order.train, config.run.seed);
  if (data.counts.valid > 0) data.valid = make(data.order.valid, config.run.seed + 1);
}

void read_corpora(const Config& config, const ModelFacts& model, const GptCorpora& corpora,
                  Datasets& data) {
  const auto part = [&](size_t number, const std::vector<int64_t>& stretches, const char* name) {
    return std::make_unique<TokenSource>(
        corpora.part(number, stretches, name), model.vocab_size,
        "; see --tokenizer-type, --vocab-file, --vocab-size and --data-path");
  };
  data.train = part(0, data.order.train, "train");
  if (data.counts.valid == 0) return;
  if (corpora.documents(1) > 0)
    data.valid = part(1, data.order.valid, "valid");
  else
    do_without_validation(config,
                          "--split \"" + config.data.split + "\" leaves none of " +
                              std::to_string(corpora.documents(0) + corpora.documents(2)) +
                              " documents to validate on",
                          ", or the second part of --split more", data);
}

void take_own(const Config& config, OwnDatasets own, Datasets& data) {
  join_stretches(data.order);
  const auto check = [&](const char* part, const SampleSource& source, int64_t wanted) {
    if (source.size() < wanted)
      throw_error("the data set \"", own.name, "\" has ", source.size(), " samples for ", part,
                  ", and the run reads ", wanted,
                  "; see --train-iters, --train-samples, --eval-iters and --eval-interval");
  };
  if (!own.train) throw_error("the data set \"", own.name, "\" has no samples for training");
  check("training", *own.train, data.counts.train);
  data.train = std::move(own.train);
  if (data.counts.valid == 0) return;
  if (own.valid) {
    check("validation", *own.valid, data.counts.valid);
    data.valid = std::move(own.valid);
  } else {
    do_without_validation(config, "the data set \"" + own.name + "\" has none to validate on", "",
                          data);
  }
}

}  // namespace

Datasets make_datasets(const Config& config, const BatchPlan& plan, const TrainState& state,
                       const ModelFacts& model, const MakeOwnDatasets& make_own) {
  Datasets data{.counts = samples_to_read(config, plan, state)};
  std::optional<OwnDatasets> own;
  std::optional<GptCorpora> corpora;
  if (make_own) {
    own = make_own(data.counts);
    data.order.facts = {{"data set", own->name}};
    data.order.facts.insert(data.order.facts.end(), own->facts.begin(), own->facts.end());
  } else if (config.data.mock_data) {
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
  if (own)
    take_own(config, std::move(*own), data);
  else if (corpora)
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
