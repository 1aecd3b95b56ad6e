// The token files that --data-path names, cut by --split into training, validation and test data.
//
//   GptCorpora corpora({"0.7", "books_text_document", "0.3", "web_text_document"}, "969, 30, 1",
//                      1024, 1234);
//   auto train = corpora.part(0, counts.train, "train");
//
// One prefix is a GptDataset; several are blended. With weights, a data set is repeated for as many
// epochs as its share needs. Without weights all are read once, in proportion to their sizes, and a
// part that has too few samples throws.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "framework/data/blended_dataset.h"
#include "framework/data/gpt_dataset.h"

namespace anymesh {

class GptCorpora {
 public:
  GptCorpora(const std::vector<std::string>& data_path, const std::string& split, int seq_length,
             uint32_t seed);

  // Returns the documents of part 0 (training), 1 or 2, over all data sets.
  int64_t documents(size_t part) const;

  // Returns at least `samples` samples. REQUIRES: documents(part) > 0. Throws if one of several
  // data sets has no documents there.
  std::unique_ptr<Dataset> part(size_t part, int64_t samples, const std::string& name) const;

 private:
  struct Corpus {
    std::shared_ptr<const IndexedDataset> tokens;
    std::array<DocumentRange, 3> ranges;
  };

  std::vector<Corpus> corpora_;
  std::vector<double> weights_;  // empty: none were given
  int seq_length_;
  uint32_t seed_;
};

}  // namespace anymesh
