#include "framework/data/datasets.h"

#include "framework/data/gpt_dataset.h"
#include "framework/data/mock_dataset.h"
#include "framework/data/tokenizer.h"

namespace anymesh {

Datasets make_datasets(const Config& config, const BatchPlan& plan, int seq_length) {
  const SampleCounts counts = sample_counts(plan.train_iters, plan.global_batch_size,
                                            config.run.eval_interval, config.run.eval_iters);
  const auto seed = config.run.seed;
  Datasets data;
  if (config.data.mock_data) {
    data.train =
        std::make_unique<MockDataset>(counts.train, seq_length, config.data.vocab_size, seed);
    if (counts.valid > 0) {
      data.valid =
          std::make_unique<MockDataset>(counts.valid, seq_length, config.data.vocab_size, seed + 1);
    }
    return data;
  }
  const auto corpus = std::make_shared<const IndexedDataset>(config.data.data_path.at(0));
  const auto ranges = split_documents(config.data.split, corpus->size());
  const auto part = [&](size_t i, int64_t samples, const char* name) {
    return std::make_unique<GptDataset>(corpus, ranges[i], samples, seq_length,
                                        static_cast<uint32_t>(seed), name);
  };
  data.train = part(0, counts.train, "train");
  if (counts.valid > 0 && ranges[1].size() > 0) data.valid = part(1, counts.valid, "valid");
  return data;
}

int vocabulary_size(const DataConfig& data) {
  if (data.mock_data || data.tokenizer_type == "NullTokenizer") return data.vocab_size;
  return make_tokenizer(data.tokenizer_type, data.vocab_file, data.merge_file)->vocab_size();
}

}  // namespace anymesh
