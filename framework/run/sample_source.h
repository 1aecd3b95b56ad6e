// A data set as a trainer reads it, of tensors of any shape and type:
//
//   struct Squares final : SampleSource {  // learns x^2
//     int64_t size() const override { return 1'000'000; }
//     MicroBatch batch(std::span<const int64_t> samples) const override {
//       const torch::Tensor x = at::remainder(to_tensor(samples), 10).to(torch::kFloat);  // [b]
//       return {.inputs = x, .labels = x * x};
//     }
//   };
//
// Like a Dataset (framework/data/dataset.h), it is a pure function of the numbers of samples, which
// count on from the run's first sample. It repeats, shuffles or augments its samples by computing
// with these numbers: number n of a data set of k images is image n % k in epoch n / k. So ranks
// agree on a batch without communication, and a resumed run needs only its count of samples.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "framework/data/dataset.h"
#include "framework/pipeline/stage.h"

namespace anymesh {

class SampleSource {
 public:
  virtual ~SampleSource() = default;

  // The samples that it has: their numbers are below it.
  virtual int64_t size() const = 0;

  // Returns the inputs and labels of these samples, in this order, along dim 0. They are in the
  // host's memory; the caller moves them to the rank's device. Only the ranks of the model's first
  // and last stages call this. Beside a device a thread of its own does, also while another source
  // is read.
  virtual MicroBatch batch(std::span<const int64_t> samples) const = 0;
};

// Returns int64 [n], a copy.
torch::Tensor to_tensor(std::span<const int64_t> numbers);

// A data set of tokens: inputs and labels are int64 [b, s], labels one position later.
class TokenSource final : public SampleSource {
 public:
  // batch() throws for a token that is not below `vocab_size`: without a row it would train as
  // nothing, and silently. `advice` ends the message.
  explicit TokenSource(std::shared_ptr<const Dataset> data, int64_t vocab_size = INT64_MAX,
                       std::string advice = "")
      : data_(std::move(data)), vocab_size_(vocab_size), advice_(std::move(advice)) {}

  int64_t size() const override { return data_->size(); }
  MicroBatch batch(std::span<const int64_t> samples) const override;

 private:
  std::shared_ptr<const Dataset> data_;
  int64_t vocab_size_;
  std::string advice_;
};

}  // namespace anymesh
