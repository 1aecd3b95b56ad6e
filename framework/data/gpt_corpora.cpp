#include "framework/data/gpt_corpora.h"

#include <algorithm>
#include <cinttypes>
#include <filesystem>
#include <utility>

#include "framework/util/errors.h"
#include "framework/util/format.h"
#include "framework/util/printable.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

// Returns the data sets with names that begin like the prefix, as words for --data-path.
std::vector<std::string> like(const fs::path& prefix) {
  std::vector<std::string> found;
  const fs::path folder = prefix.has_parent_path() ? prefix.parent_path() : ".";
  std::error_code no_folder;
  for (const auto& entry : fs::directory_iterator(folder, no_folder)) {
    const fs::path name = entry.path().filename();
    if (name.extension() == ".idx" && name.string().starts_with(prefix.filename().string()))
      found.push_back((prefix.parent_path() / name.stem()).string());
  }
  std::ranges::sort(found);
  return found;
}

// Throws for a prefix without an index if it can tell the mistake, and names the right one.
void check_prefix(const std::string& prefix) {
  if (fs::exists(prefix + ".idx")) return;
  const fs::path path = prefix;
  const std::string what = "--data-path " + printable(prefix) + ": ";
  const std::string ending = path.extension(), stem = fs::path(path).replace_extension();
  if ((ending == ".bin" || ending == ".idx") && fs::exists(stem + ".idx"))
    throw_error(what, "is a file of a data set; give its prefix, --data-path ", printable(stem));
  if (fs::is_regular_file(path) && (ending == ".jsonl" || ending == ".json" || ending == ".txt"))
    throw_error(what, "is text; give the prefix of the files that preprocess_data makes from it");
  if (prefix.find(' ') != std::string::npos)
    throw_error(what,
                "is one word with blanks in it, and no data set; a blend's weights and "
                "prefixes are words of their own, without quotes: --data-path ",
                printable(prefix));
  const std::vector<std::string> others = like(path);
  if (!others.empty())
    throw_error(
        what, "there is no ", printable(prefix), ".idx; there is --data-path ",
        printable(others[0]),
        others.size() > 1 ? ", or one of " + std::to_string(others.size() - 1) + " more" : "");
}

// Data sets laid end to end, the i-th cut to counts[i] samples. The last is whole.
class EndToEnd final : public Dataset {
 public:
  EndToEnd(std::vector<std::unique_ptr<Dataset>> datasets, const std::vector<int64_t>& counts,
           std::string name)
      : datasets_(std::move(datasets)), name_(std::move(name)), starts_{0} {
    for (const int64_t count : counts) starts_.push_back(starts_.back() + count);
    starts_.pop_back();
  }

  int64_t size() const override { return starts_.back() + datasets_.back()->size(); }
  int seq_length() const override { return datasets_.front()->seq_length(); }
  void sample(int64_t index, std::span<int64_t> out) const override {
    check_request(name_, index, out);
    const auto after = std::ranges::upper_bound(starts_, index);
    datasets_[after - starts_.begin() - 1]->sample(index - *(after - 1), out);
  }

 private:
  std::vector<std::unique_ptr<Dataset>> datasets_;
  std::string name_;
  std::vector<int64_t> starts_;
};

}  // namespace

GptCorpora::GptCorpora(const std::vector<std::string>& data_path, const std::string& split,
                       int seq_length, uint32_t seed)
    : seq_length_(seq_length), seed_(seed) {
  Blend blend = parse_blend(data_path);
  for (const std::string& prefix : blend.prefixes) {
    check_prefix(prefix);
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

std::unique_ptr<Dataset> GptCorpora::part(size_t part, const std::vector<int64_t>& stretches,
                                          const std::string& name) const {
  std::vector<std::unique_ptr<Dataset>> datasets;
  for (size_t i = 0; i < stretches.size(); ++i)
    datasets.push_back(stretch(part, stretches[i], seed_ + static_cast<uint32_t>(i), name));
  return datasets.size() == 1 ? std::move(datasets.front())
                              : std::make_unique<EndToEnd>(std::move(datasets), stretches, name);
}

std::vector<std::pair<std::string, std::string>> GptCorpora::describe() const {
  std::vector<std::string> documents, parts;
  for (size_t i = 0; i < corpora_.size(); ++i) {
    const auto& [tokens, ranges] = corpora_[i];
    documents.push_back(
        (weights_.empty() ? "" : string_printf("%.12g x ", weights_[i])) +
        string_printf("%" PRId64 " documents %016" PRIx64, tokens->size(), tokens->fingerprint()));
    parts.push_back(string_printf("training %" PRId64 " to %" PRId64 ", validation to %" PRId64,
                                  ranges[0].first, ranges[0].last, ranges[1].last));
  }
  return {{"--data-path", joined(documents, "; ")},
          {"--split", "documents for " + joined(parts, "; ")},
          {"--seq-length", std::to_string(seq_length_)},
          {"--seed", std::to_string(seed_)}};
}

std::unique_ptr<Dataset> GptCorpora::stretch(size_t part, int64_t samples, uint32_t seed,
                                             const std::string& name) const {
  const auto one = [&](const Corpus& corpus, int64_t share) {
    return std::make_unique<GptDataset>(corpus.tokens, corpus.ranges[part], share, seq_length_,
                                        seed, name);
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
  if (shares.empty() && once < samples)
    throw_error(
        name, " data: --data-path without weights reads every data set once, which gives ", once,
        " samples of --seq-length (", seq_length_, "), but the run needs ", samples,
        "; give weights (--data-path WEIGHT PREFIX WEIGHT PREFIX...), which repeat data sets");
  return std::make_unique<BlendedDataset>(std::move(datasets), weights, samples, name);
}

}  // namespace anymesh
