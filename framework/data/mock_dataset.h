// --mock-data: endless text without a file, the same on every machine, that a model can learn.
//
// The text is a first-order chain over min(vocab_size, 64) symbols. They are spread evenly over the
// vocabulary so that every vocabulary-parallel rank owns some. Each symbol has one successor, which
// follows with probability 7/8; otherwise the next symbol is drawn at random. The loss starts near
// ln(vocab_size) and cannot fall below the entropy of the next symbol, 0.88 nats for 64 symbols.
// Token p of sample i depends on (seed, i, 0..p) only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "framework/data/dataset.h"
#include "framework/util/errors.h"

namespace anymesh {

class MockDataset final : public Dataset {
 public:
  MockDataset(int64_t num_samples, int seq_length, int64_t vocab_size, uint64_t seed)
      : num_samples_(num_samples), seq_length_(seq_length), seed_(seed) {
    if (num_samples < 0 || seq_length < 1 || vocab_size < 2)
      throw_error("--mock-data needs at least 0 samples, length 1 and vocabulary 2; got ",
                  num_samples, ", ", seq_length, " and ", vocab_size);
    symbols_ = std::min<int64_t>(vocab_size, 64);
    stride_ = vocab_size / symbols_;
  }

  int64_t size() const override { return num_samples_; }
  int seq_length() const override { return seq_length_; }

  void sample(int64_t index, std::span<int64_t> out) const override {
    check_request("mock", index, out);
    const uint64_t stream = mix(seed_ ^ mix(static_cast<uint64_t>(index)));
    int64_t symbol = mix(stream) % symbols_;
    for (size_t p = 0; p < out.size(); ++p) {
      out[p] = symbol * stride_;
      const uint64_t dice = mix(stream + p + 1);
      symbol = dice % 8 == 0 ? (dice >> 8) % symbols_ : successor(symbol);
    }
  }

 private:
  int64_t successor(int64_t symbol) const { return (5 * symbol + 3) % symbols_; }

  // The finaliser of splitmix64: a bijection whose outputs look random.
  static uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
  }

  int64_t num_samples_;
  int seq_length_;
  uint64_t seed_;
  int64_t symbols_;
  int64_t stride_;
};

}  // namespace anymesh
