#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "framework/comm/process_grid.h"
#include "framework/config/config.h"
#include "framework/config/flags.h"
#include "framework/engine_flags.h"
#include "framework/pipeline/stage.h"

namespace anymesh {

// A model with its flags: all that differs between two training programs. pretrain_gpt.cpp has the
// GPT's, tutorials/13_new_model one in as few lines as can be. The methods are called in this
// order.
class ModelDefinition {
 public:
  virtual ~ModelDefinition() = default;

  // Declares the model's flags, beside the framework's.
  virtual void add_flags(FlagTable& flags) = 0;

  // All flags are read. Throws ParseError by the rules of the framework, validate(config,
  // world_size), and of the model; fills in what follows from other flags, as checkpoints shall
  // have it.
  virtual ModelFacts settle(const Config& config, int vocab_size, int world_size) = 0;

  // This rank's stage. `grid` lives as long.
  virtual std::unique_ptr<StageModule> make_stage(const Config& config, const ProcessGrid& grid,
                                                  torch::Dtype dtype) const = 0;
};

// A program's main: flags -> mesh -> model -> optimizer -> data -> training loop. Returns its exit
// status, after one message from whoever has it if it is not 0.
//
//   int main(int argc, char** argv) {
//     return anymesh::pretrain<Gpt>(argc, argv, "pretrain_gpt", "Trains a GPT.");
//   }
//
// Each rank has a model definition and flags of its own, also where ranks are threads
// (--local-ranks).
using MakeModel = std::function<std::unique_ptr<ModelDefinition>()>;
int pretrain(int argc, char** argv, const std::string& program, const std::string& description,
             const MakeModel& make_model);

template <class Model>
int pretrain(int argc, char** argv, const std::string& program, const std::string& description) {
  return pretrain(argc, argv, program, description, [] { return std::make_unique<Model>(); });
}

}  // namespace anymesh
