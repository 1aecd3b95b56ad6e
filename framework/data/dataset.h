// Training data: numbered samples of seq_length + 1 tokens.
//
//   std::vector<int64_t> tokens(data.seq_length() + 1);
//   data.sample(consumed_samples, tokens);   // inputs = [0, s), labels = [1, s + 1)
//
// A data set is a pure function of the index. So ranks agree on a batch without communication, and
// a resumed run needs only the number of consumed samples. GptDataset reads a corpus, MockDataset
// invents one.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "framework/util/errors.h"

namespace anymesh {

class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual int64_t size() const = 0;
  virtual int seq_length() const = 0;

  // Writes sample `index`. Throws std::runtime_error unless 0 <= index < size() and out.size() ==
  // seq_length() + 1. Thread-safe.
  virtual void sample(int64_t index, std::span<int64_t> out) const = 0;

 protected:
  void check_request(const std::string& name, int64_t index, std::span<int64_t> out) const {
    if (index < 0 || index >= size())
      throw_error(name, " data: sample ", index, " was asked for, but there are only ", size());
    if (out.size() != static_cast<size_t>(seq_length()) + 1)
      throw_error(name, " data: room for ", out.size(), " tokens was given, but a sample has ",
                  seq_length() + 1);
  }
};

}  // namespace anymesh
