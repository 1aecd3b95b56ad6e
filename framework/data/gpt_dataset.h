// Fixed-length samples over a corpus of documents, in the order of Megatron-DeepSpeed's GPTDataset.
//
// Documents are repeated for as many epochs as the samples need, shuffled and laid end to end.
// Sample i is the seq_length + 1 tokens that begin at token i * seq_length of that stream. A second
// shuffle decides when it is read. Both are shuffles by numpy.random.RandomState(seed), so the
// order equals Megatron's for the same corpus, --split, --seed, --seq-length and number of samples.
//
//   auto corpus = std::make_shared<const IndexedDataset>("corpus_text_document");
//   auto ranges = split_documents("969, 30, 1", corpus->size());
//   GptDataset train(corpus, ranges[0], sample_counts(...).train, 1024, 1234, "train");
//
// Throws for a part without documents, with fewer tokens than one sample, or with more than 2^31
// documents or samples.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "framework/data/dataset.h"
#include "framework/data/indexed_dataset.h"
#include "framework/data/sample_order.h"

namespace anymesh {

// Splits by --split "969, 30, 1" (or with '/'): train, valid and test documents in proportion to
// the weights, which need not add up to anything. Missing weights are 0, and a part may come out
// empty.
std::array<DocumentRange, 3> split_documents(const std::string& split, int64_t documents);

struct SampleCounts {
  int64_t train = 0;
  int64_t valid = 0;

  bool operator==(const SampleCounts&) const = default;
};

// Returns how many samples a run reads from step `iteration` to `train_iters`. Validation runs
// every eval_interval steps and once at the end. REQUIRES: eval_interval > 0.
SampleCounts sample_counts(int64_t iteration, int64_t train_iters, int64_t global_batch_size,
                           int64_t eval_interval, int64_t eval_iters);

class GptDataset final : public Dataset {
 public:
  using Position = SamplePosition;

  // Holds at least num_samples samples, since the last epoch is kept whole. `name` ("train") is for
  // error messages.
  GptDataset(std::shared_ptr<const IndexedDataset> corpus, DocumentRange documents,
             int64_t num_samples, int seq_length, uint32_t seed, std::string name);

  int64_t size() const override { return static_cast<int64_t>(order_.samples.size()); }
  int seq_length() const override { return seq_length_; }
  void sample(int64_t index, std::span<int64_t> out) const override;

  // Megatron's doc_idx, sample_idx and shuffle_idx.
  std::span<const int32_t> document_order() const { return order_.documents; }
  std::span<const Position> positions() const { return order_.positions; }  // size() + 1
  std::span<const uint32_t> sample_order() const { return order_.samples; }

 private:
  std::shared_ptr<const IndexedDataset> corpus_;
  int seq_length_;
  std::string name_;
  SampleOrder order_;
};

}  // namespace anymesh
