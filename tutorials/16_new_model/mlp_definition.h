#pragma once

#include <memory>

#include "framework/run/pretrain.h"
#include "tutorials/16_new_model/mlp_model.h"

namespace anymesh {

// The MLP with its flags, for the programs that train it and that write text with it.
class Mlp final : public ModelDefinition {
 public:
  void add_flags(FlagTable& flags) override {
    flags.group("MLP");
    flags.add("num-layers", mlp_.num_layers, "residual MLPs", "required");
    flags.add("hidden-size", mlp_.hidden_size, "width of a token", "required");
    flags.add("seq-length", mlp_.seq_length, "tokens per sample", "required");
    flags.add("context-length", mlp_.context_length, "tokens that the next one depends on");
  }

  ModelFacts settle(const Config& config, int vocab_size, int world_size) override {
    mlp_.vocab_size = vocab_size;
    validate(config, world_size);
    validate(mlp_, config.parallel);
    const int tp = config.parallel.tp;
    return {.seq_length = mlp_.seq_length,
            .vocab_size = vocab_size,
            .padded_vocab_size = int64_t{vocab_size + tp - 1} / tp * tp,
            .flags = {"num-layers", "hidden-size", "context-length"}};
  }

  std::unique_ptr<StageModule> make_stage(const Config& config, const ProcessGrid& grid,
                                          torch::Dtype dtype) const override {
    return std::make_unique<MlpModel>(mlp_, grid, dtype, config.batch.micro_batch_size,
                                      config.run.seed, config.parallel.sequence_parallel);
  }

 private:
  MlpConfig mlp_;
};

}  // namespace anymesh
