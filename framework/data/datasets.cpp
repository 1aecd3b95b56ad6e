#include "framework/data/datasets.h"

#include "framework/data/gpt_corpora.h"
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
  const GptCorpora corpora(config.data.data_path, config.data.split, seq_length,
                           static_cast<uint32_t>(seed));
  data.train = corpora.part(0, counts.train, "train");
  if (counts.valid > 0 && corpora.documents(1) > 0) {
    data.valid = corpora.part(1, counts.valid, "valid");
  }
  return data;
}

int vocabulary_size(const DataConfig& data) {
  if (data.mock_data || data.tokenizer_type == "NullTokenizer") return data.vocab_size;
  return make_tokenizer(data.tokenizer_type, data.vocab_file, data.merge_file, data.tokenizer_model)
      ->vocab_size();
}

}  // namespace anymesh
