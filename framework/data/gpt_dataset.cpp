#include "framework/data/gpt_dataset.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>
#include <utility>

#include "framework/util/errors.h"
#include "framework/util/format.h"
#include "framework/util/parse_number.h"

namespace anymesh {
namespace {

constexpr int64_t kMaxEntries = std::numeric_limits<int32_t>::max();

std::array<double, 3> parse_weights(const std::string& split) {
  const std::string expected =
      "--split \"" + split + "\": expected up to three weights >= 0 with a sum > 0, as in 969,30,1";
  const char separator = split.find(',') != std::string::npos ? ',' : '/';
  std::array<double, 3> weights{};
  size_t count = 0;
  for (std::string_view text : anymesh::split(split, separator)) {
    text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
    const auto weight = parse_number<double>(text.substr(0, text.find_last_not_of(' ') + 1));
    if (!weight || !(*weight >= 0 && std::isfinite(*weight)) || count == weights.size())
      throw_error(expected);
    weights[count++] = *weight;
  }
  const double sum = weights[0] + weights[1] + weights[2];
  if (!(sum > 0 && std::isfinite(sum))) throw_error(expected);
  return weights;
}

// Returns whether the last epoch is shuffled by itself, because little of it is used. Mixed with
// the others it would leave gaps in them. The 80 % are Megatron's.
bool keep_last_epoch_apart(int64_t epochs, int64_t tokens_per_epoch, int64_t num_samples,
                           int64_t seq_length) {
  if (epochs == 1) return false;
  const int64_t before_last = ((epochs - 1) * tokens_per_epoch - 1) / seq_length;
  const int64_t per_epoch = (tokens_per_epoch - 1) / seq_length;
  return num_samples - before_last < static_cast<int64_t>(0.80 * static_cast<double>(per_epoch));
}

}  // namespace

std::array<DocumentRange, 3> split_documents(const std::string& split, int64_t documents) {
  const auto weights = parse_weights(split);
  const double sum = weights[0] + weights[1] + weights[2];
  std::array<int64_t, 4> ends{};
  for (size_t i = 0; i < 3; ++i) {
    // rint rounds a half to even, as Python's round does.
    ends[i + 1] = ends[i] + std::llrint(weights[i] / sum * static_cast<double>(documents));
  }
  // Rounding may have given out a document too many or too few. Every end moves by that excess.
  const int64_t excess = ends[3] - documents;
  std::array<DocumentRange, 3> ranges;
  for (size_t i = 0; i < 3; ++i) {
    ends[i + 1] -= excess;
    ranges[i] = {ends[i], ends[i + 1]};
  }
  if (ends[1] < 0)
    throw_error("--split \"", split, "\" cannot be rounded to ", documents, " documents");
  return ranges;
}

SampleCounts sample_counts(int64_t iteration, int64_t train_iters, int64_t global_batch_size,
                           int64_t eval_interval, int64_t eval_iters) {
  const int64_t end = std::max(iteration, train_iters),
                evaluations = end / eval_interval - iteration / eval_interval + 1;
  return {(end - iteration) * global_batch_size, evaluations * eval_iters * global_batch_size};
}

GptDataset::GptDataset(std::shared_ptr<const IndexedDataset> corpus, DocumentRange documents,
                       int64_t num_samples, int seq_length, uint32_t seed, std::string name)
    : corpus_(std::move(corpus)), seq_length_(seq_length), name_(std::move(name)) {
  const std::string what = name_ + " data of " + corpus_->prefix() + ": ";
  if (documents.first < 0 || documents.last > corpus_->size() || documents.size() <= 0)
    throw_error(what, "--split leaves documents [", documents.first, ", ", documents.last, ") of ",
                corpus_->size(), ", expected at least one");
  const int64_t tokens = corpus_->tokens(documents.first, documents.last);
  if (seq_length < 1 || tokens <= seq_length)
    throw_error(what, documents.size(), " documents have ", tokens,
                " tokens, expected at least --seq-length (", seq_length, ") + 1");
  if (num_samples < 0 || num_samples > kMaxEntries)
    throw_error(what, num_samples, " samples are wanted, expected 0 to 2^31 - 1");
  // The fewest epochs with num_samples * seq_length + 1 tokens: neighbours share their border
  // token.
  const int64_t epochs = std::max<int64_t>(1, (num_samples * seq_length + tokens) / tokens);
  const int64_t count = (epochs * tokens - 1) / seq_length;
  if (epochs > kMaxEntries / documents.size() || documents.last > kMaxEntries ||
      count > kMaxEntries)
    throw_error(what, epochs, " epochs of ", documents.size(), " documents with ", count,
                " samples: expected at most 2^31 - 1 of each");

  const bool last_apart = keep_last_epoch_apart(epochs, tokens, num_samples, seq_length);
  order_ = anymesh::sample_order(
      *corpus_,
      {.documents = documents,
       .epochs = epochs,
       .samples = count,
       .mixed_samples = last_apart ? ((epochs - 1) * tokens - 1) / seq_length : count,
       .last_apart = last_apart,
       .seq_length = seq_length,
       .seed = seed},
      name_);
}

void GptDataset::sample(int64_t index, std::span<int64_t> out) const {
  check_request(name_, index, out);
  Position at = order_.positions[order_.samples[index]];
  while (!out.empty()) {
    if (at.entry >= std::ssize(order_.documents))
      throw_error(name_, " data of ", corpus_->prefix(), ": ends within sample ", index);
    const int32_t document = order_.documents[at.entry];
    const size_t count = std::min<size_t>(out.size(), corpus_->length(document) - at.offset);
    corpus_->read(document, at.offset, out.first(count));
    out = out.subspan(count);
    at = {at.entry + 1, 0};
  }
}

}  // namespace anymesh
