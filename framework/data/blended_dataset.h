// Reads several data sets as one, each in proportion to its weight, in the order of Megatron's
// BlendedDataset.
//
//   --data-path 0.7 books_text_document 0.3 web_text_document
//
// Sample n comes from the data set that is furthest behind its share: the first with the largest
// weight * max(n, 1) - (samples given so far). Each data set gives its own samples in order.
//
//   weights 0.7, 0.3     n         0  1  2  3  4  5  6
//                        data set  0  1  0  0  1  0  0
//
// The order depends on the weights alone, so a run resumes from n alone. It is not stored either.
// The samples that each has given are noted every 512 samples, and the rule runs on from there.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "framework/data/dataset.h"

namespace anymesh {

// The value of --data-path: one prefix of .bin/.idx files, several, or several with weights.
struct Blend {
  std::vector<std::string> prefixes;
  std::vector<double> weights;  // as they were given; empty if they were not
};

// Parses --data-path. Every second value is a weight if all of them are numbers, as in Megatron.
// Throws for weights that are not positive, and for prefixes with and without weights together.
Blend parse_blend(const std::vector<std::string>& data_path);

// Returns the weights scaled to add up to 1. They equal numpy's in Megatron to the last bit,
// because that bit decides a tie.
std::vector<double> normalized(std::span<const double> weights);

// Returns the number of samples that Megatron prepares from a data set with the share `weight` of
// `samples`: 0.5 % more than the share. The rule never needs the margin, but the margin decides how
// often documents are repeated.
int64_t samples_of_share(double weight, int64_t samples);

// The rule above, for all samples.
class BlendOrder {
 public:
  struct Source {
    int64_t dataset = 0;
    int64_t sample = 0;

    bool operator==(const Source&) const = default;
  };

  // REQUIRES: weights from normalized(), size >= 0. Takes 12 ns or less for each sample and data
  // set, and keeps 8 bytes for every 512 samples and data set.
  BlendOrder(std::vector<double> weights, int64_t size);

  int64_t size() const { return size_; }
  Source at(int64_t index) const;  // REQUIRES: 0 <= index < size()

  // Returns the number of samples that a data set gives in all: samples [0, count).
  int64_t count(int64_t dataset) const { return static_cast<int64_t>(counts_[dataset]); }

 private:
  size_t next(int64_t index, std::span<double> given) const;

  std::vector<double> weights_;
  int64_t size_;
  std::vector<double> noted_;  // [notes, data sets]; exact, as doubles count to 2^53
  std::vector<double> counts_;
};

class BlendedDataset final : public Dataset {
 public:
  // Throws if a data set has fewer samples than the order takes from it. `name` ("train") is for
  // messages.
  BlendedDataset(std::vector<std::unique_ptr<Dataset>> datasets, std::span<const double> weights,
                 int64_t size, std::string name);

  int64_t size() const override { return order_.size(); }
  int seq_length() const override { return datasets_.front()->seq_length(); }
  void sample(int64_t index, std::span<int64_t> out) const override;

 private:
  std::vector<std::unique_ptr<Dataset>> datasets_;
  BlendOrder order_;
  std::string name_;
};

}  // namespace anymesh
