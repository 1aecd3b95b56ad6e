// The order of a GptDataset's samples: Megatron's doc_idx, sample_idx and shuffle_idx.
//
// An order of more than a million entries is kept in a file beside the corpus,
// PREFIX.train.1234.order, by part and seed. The first process makes it, and all others map it. The
// file begins with the order's rule and the CRC-32 of the rest. An order by another rule is
// replaced. A file of another kind is left alone. Where none can be written, each process has its
// own order in memory.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "framework/data/indexed_dataset.h"

namespace anymesh {

struct DocumentRange {
  int64_t first = 0;
  int64_t last = 0;  // exclusive

  int64_t size() const { return last - first; }
  bool operator==(const DocumentRange&) const = default;
};

// The start of a sample: an entry of `documents` and a token offset in that document.
struct SamplePosition {
  int32_t entry = 0;
  int32_t offset = 0;

  bool operator==(const SamplePosition&) const = default;
};

struct SampleOrder {
  std::span<const int32_t> documents;
  std::span<const SamplePosition> positions;  // one more than samples
  std::span<const uint32_t> samples;
  std::shared_ptr<const void> storage;  // has them
};

// An order follows from this and the lengths of the documents.
struct OrderRule {
  DocumentRange documents;
  int64_t epochs = 0, samples = 0;  // of all epochs
  int64_t mixed_samples = 0;        // shuffled together, before those of a last epoch that is apart
  bool last_apart = false;
  int64_t seq_length = 0;
  uint32_t seed = 0;
};

// `part` is for the file's name.
SampleOrder sample_order(const IndexedDataset& corpus, const OrderRule& rule,
                         const std::string& part);

}  // namespace anymesh
