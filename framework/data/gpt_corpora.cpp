#include "framework/data/gpt_corpora.h"

#include <utility>

#include "framework/data/throw_error.h"

namespace anymesh {

GptCorpora::GptCorpora(const std::vector<std::string>& data_path, const std::string& split,
                       int seq_length, uint32_t seed)
    : seq_length_(seq_length), seed_(seed) {
  Blend blend = parse_blend(data_path);
  for (const std::string& prefix : blend.prefixes) {
    auto tokens = std::make_shared<const IndexedDataset>(prefix);
    corpora_.push_back({tokens, split_documents(split, tokens->size())});
  }
  weights_ = std::move(blend.weights);
}

int64_t GptCorpora::documents(size_t part) const {
  int64_t documents = 0;
  for (const Corpus& corpus : corpora_) documents += corpus.ranges[part].size();
  return documents;
}

std::unique_ptr<Dataset> GptCorpora::part(size_t part, int64_t samples,
                                          const std::string& name) const {
  const auto one = [&](const Corpus& corpus, int64_t share) {
    return std::make_unique<GptDataset>(corpus.tokens, corpus.ranges[part], share, seq_length_,
                                        seed_, name);
  };
  if (corpora_.size() == 1 && weights_.empty()) return one(corpora_.front(), samples);
  std::vector<std::unique_ptr<Dataset>> datasets;
  std::vector<double> weights = weights_;
  const std::vector<double> shares = normalized(weights);
  for (size_t i = 0; i < corpora_.size(); ++i) {
    const int64_t share = shares.empty() ? 0 : samples_of_share(shares[i], samples);
    datasets.push_back(one(corpora_[i], share));
    if (shares.empty()) weights.push_back(static_cast<double>(datasets.back()->size()));
  }
  int64_t once = 0;
  for (const auto& dataset : datasets) once += dataset->size();
  if (shares.empty() && once < samples) {
    throw_error(
        name, " data: --data-path without weights reads every data set once, which gives ", once,
        " samples of --seq-length (", seq_length_, "), but the run needs ", samples,
        "; give weights (--data-path WEIGHT PREFIX WEIGHT PREFIX...), which repeat data sets");
  }
  return std::make_unique<BlendedDataset>(std::move(datasets), weights, samples, name);
}

}  // namespace anymesh
