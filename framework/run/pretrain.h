#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "framework/comm/process_grid.h"
#include "framework/config/config.h"
#include "framework/config/flags.h"
#include "framework/pipeline/stage.h"

namespace anymesh {

// A model with its flags: all that differs between two training programs. models/gpt has the
// GPT's, and tutorials/13_new_model that of a minimal model. The methods are called in this order.
class ModelDefinition {
 public:
  virtual ~ModelDefinition() = default;

  // Declares the model's flags, next to the framework's.
  virtual void add_flags(FlagTable& flags) = 0;

  // Called once all flags are read. Throws UserError if they break the rules of the framework,
  // validate(config, world_size), or of the model. Fills in the values that follow from other
  // flags, as checkpoints store them.
  virtual ModelFacts settle(const Config& config, int vocab_size, int world_size) = 0;

  // Returns this rank's stage. `grid` outlives it.
  virtual std::unique_ptr<StageModule> make_stage(const Config& config, const ProcessGrid& grid,
                                                  torch::Dtype dtype) const = 0;
};

// A program's main: flags -> mesh -> model -> optimizer -> data -> training loop. Returns the exit
// status. If it is not 0, one message has been printed.
//
//   int main(int argc, char** argv) {
//     return anymesh::pretrain(argc, argv, "pretrain_gpt", "Trains a GPT.",
//                              [] { return std::make_unique<Gpt>(); });
//   }
//
// Each rank has its own model definition and flags, even where ranks are threads (--local-ranks).
using MakeModel = std::function<std::unique_ptr<ModelDefinition>()>;
int pretrain(int argc, char** argv, const std::string& program, const std::string& description,
             const MakeModel& make_model);

}  // namespace anymesh
