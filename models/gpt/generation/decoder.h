#pragma once

#include <vector>

#include "models/gpt/gpt_model.h"

namespace anymesh {

// A GPT that reads a text piece by piece and says what may come next, for generation:
//
//   Decoder decoder(model);
//   torch::Tensor logits = decoder.append(prompt);  // [b, s] -> [b, v]
//   logits = decoder.append(next_token);            // [b, 1] -> [b, v]
//
// Each piece is computed once: of what was read before, a layer needs the keys and values alone,
// which are kept. Logits are those that GptModel::forward() has at the last position, up to the
// order of sums; no gradients, no dropout. Layers are run by the model's own TransformerLayer, with
// its attention in place of training's.
class Decoder {
 public:
  // `model` must live as long, on a grid of one rank, and may be given other weights between texts.
  // A text has at most its config's seq_length tokens, for which it has its tables of positions.
  explicit Decoder(const GptModel& model);

  // int64 [b, s] -> the logits of the token after them, [b, v], padding left out. Throws if the
  // text becomes too long.
  torch::Tensor append(const torch::Tensor& tokens);

  int64_t length() const { return length_; }  // tokens read so far
  void clear() { length_ = 0; }               // for another text

 private:
  // Of one layer, with room for the longest text: [b, k, seq_length, d], keys already turned
  // (positions.h).
  struct Cache {
    torch::Tensor keys, values;
  };
  torch::Tensor attend(const ParallelAttention& attention, Cache& cache,
                       const torch::Tensor& qkv) const;  // see ParallelAttention::Mix
  // Puts the next positions' keys or values, [b, k, s, d], behind those so far. Returns all.
  torch::Tensor extended(torch::Tensor& cache, const torch::Tensor& next) const;
  // The tables for queries and keys [first, first + s), and the bias of the scores of these queries
  // with all keys before first + s.
  static RelativePositions part(RelativePositions positions, int64_t first, int64_t s);

  const GptModel& model_;
  std::vector<Cache> caches_;  // one a layer
  int64_t length_ = 0;
};

}  // namespace anymesh
