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
#include <utility>
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

  // Returns at least `stretches[0]` samples, in Megatron's order. A run that is extended keeps that
  // order and adds a stretch: `stretches[k]` samples, from another shuffle of the part. REQUIRES:
  // documents(part) > 0. Throws if one of several data sets has no documents there.
  std::unique_ptr<Dataset> part(size_t part, const std::vector<int64_t>& stretches,
                                const std::string& name) const;

  // Returns what the order of samples depends on, besides the stretches: for each flag its value,
  // or a digest of the documents.
  std::vector<std::pair<std::string, std::string>> describe() const;

 private:
  std::unique_ptr<Dataset> stretch(size_t part, int64_t samples, uint32_t seed,
                                   const std::string& name) const;

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
