#pragma once

#include "framework/pipeline/stage.h"

namespace anymesh {

// A model as text generation sees it. It reads texts piece by piece, several side by side, and
// gives the logits of their next tokens:
//
//   torch::Tensor logits = model.append(prompts);  // [b, s] -> [b, v]
//   logits = model.append(next_tokens);            // [b, 1] -> [b, v]
class TextModel {
 public:
  virtual ~TextModel() = default;

  // Reads tokens, int64 [b, s], behind those read so far. Returns the logits of the next token,
  // fp32 [b, v].
  virtual torch::Tensor append(const torch::Tensor& tokens) = 0;
  virtual int64_t length() const = 0;  // tokens read so far
  virtual void clear() = 0;            // for other texts
};

// Any model on one rank, whose forward() returns logits if the batch has no labels. Each piece
// computes the whole text again.
class StageTextModel final : public TextModel {
 public:
  explicit StageTextModel(StageModule& stage) : stage_(stage) {}  // must outlive this object

  torch::Tensor append(const torch::Tensor& tokens) override;
  int64_t length() const override { return tokens_.defined() ? tokens_.size(1) : 0; }
  void clear() override { tokens_.reset(); }

 private:
  StageModule& stage_;
  torch::Tensor tokens_;  // [b, length()]
};

}  // namespace anymesh
