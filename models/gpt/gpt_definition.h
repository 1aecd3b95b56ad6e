#pragma once

#include <algorithm>
#include <memory>

#include "framework/config/require.h"
#include "framework/run/pretrain.h"
#include "models/gpt/gpt_model.h"

namespace anymesh {

// The GPT with its flags, for programs.
class Gpt final : public ModelDefinition {
 public:
  void add_flags(FlagTable& flags) override { anymesh::add_flags(flags, gpt_); }

  ModelFacts settle(const Config& config, int vocab_size, int world_size) override {
    gpt_.vocab_size = vocab_size;
    gpt_.eod_token = config.data.eod_token;
    require(!config.data.own || gpt_.eod_token >= 0 ||
                (!gpt_.separates_documents() && !gpt_.eod_mask_loss),
            "--reset-position-ids, --reset-attention-mask and --eod-mask-loss need data with a "
            "token that ends documents (TrainingProgram::vocabulary)");
    validate(config, gpt_, world_size);
    gpt_ = resolved(gpt_);
    return model_facts(gpt_, std::max(config.parallel.tp, config.parallel.same_bits));
  }

  std::unique_ptr<StageModule> make_stage(const Config& config, const ProcessGrid& grid,
                                          torch::Dtype dtype) const override {
    return std::make_unique<GptModel>(gpt_, grid, dtype, config.batch.micro_batch_size,
                                      config.run.seed, config.parallel.sequence_parallel);
  }

  const GptConfig& gpt() const { return gpt_; }

 private:
  GptConfig gpt_;
};

}  // namespace anymesh
