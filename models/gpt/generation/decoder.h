#pragma once

#include <vector>

#include "framework/pipeline/text_model.h"
#include "models/gpt/gpt_model.h"

namespace anymesh {

// Reads a text piece by piece and returns the logits of the next token, for generation:
//
//   Decoder decoder(model);
//   torch::Tensor logits = decoder.append(prompt);  // [b, s] -> [b, v]
//   logits = decoder.append(next_token);            // [b, 1] -> [b, v]
//
// Each piece is computed once. Layers keep the keys and values of earlier pieces, and need nothing
// else. The logits equal GptModel::forward()'s at the last position, up to the order of sums. There
// are no gradients and no dropout. Layers run in the model's own TransformerLayer, with another
// attention than training's.
class Decoder final : public TextModel {
 public:
  // `model` must outlive the decoder, on a grid of one rank. It may be given other weights between
  // texts. A text has at most the seq_length tokens of its config, because its tables of positions
  // end there.
  explicit Decoder(const GptModel& model);

  // Reads tokens, int64 [b, s]. Returns the logits of the next token, [b, v], without padding.
  // Throws if the text becomes too long.
  torch::Tensor append(const torch::Tensor& tokens) override;

  int64_t length() const override { return length_; }
  void clear() override { length_ = 0; }

 private:
  // One layer's keys and values, with room for the longest text: [b, k, seq_length, d]. Keys are
  // already rotated (positions.h).
  struct Cache {
    torch::Tensor keys, values;
  };
  torch::Tensor attend(const ParallelAttention& attention, Cache& cache,
                       const torch::Tensor& qkv) const;  // see ParallelAttention::Mix
  // Puts the next positions' keys or values, [b, k, s, d], behind the earlier ones. Returns all.
  torch::Tensor extended(torch::Tensor& cache, const torch::Tensor& next) const;
  // Returns the tables for queries and keys [first, first + s), and the score bias of these queries
  // with all keys before first + s.
  static RelativePositions part(RelativePositions positions, int64_t first, int64_t s);

  const GptModel& model_;
  std::vector<Cache> caches_;  // one per layer
  int64_t length_ = 0;
};

}  // namespace anymesh
