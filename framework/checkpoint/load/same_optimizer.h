#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "framework/checkpoint/checkpoint.h"
#include "framework/format/torch_file.h"

namespace anymesh {

// Whether this run's optimizer can go on with the state of a checkpoint. Other optimizers have
// states of the same names, so the settings beside them count too. The functions throw with a
// message that names the ways to load the weights alone.

// The steps of the states that a rank has read, each with a parameter that has it.
using StepsRead = std::map<int64_t, std::string>;

// Returns the step that all states have, or 0 if no rank has read any. Throws CollectiveError if
// two differ, because this optimizer counts one step for all. Collective.
int64_t common_step(Communicator& world, const StepsRead& mine,
                    const std::filesystem::path& folder);

// Whether an optimizer has a state of this name, or counts steps and this is the step.
bool has_state(const Optimizer& optimizer, const Value& name);

// Throws unless the optimizer that wrote `optimizer_state` is the run's, by its name and version
// (ours are in `param_groups`, DeepSpeed's name in `ds_config`), its settings and its states.
// `metadata` is a model-states file.
void check_same_optimizer(const Value& metadata, const Value& optimizer_state,
                          const CheckpointedRun& run);

// Throws for moments that Adam cannot have: a parameter whose first moment is not zero, while its
// second is. Call after loading.
void check_second_moments(const ZeroOptimizer& optimizer, const std::filesystem::path& folder);

// Returns a line for each of the optimizer's settings, the weight decay and the groups' learning
// rates that the checkpoint's run had otherwise. This run goes on with its flags.
std::vector<std::string> announce_hyperparameters(const Value& optimizer_state,
                                                  const CheckpointedRun& run);

// Returns a line about `fresh`, the parameters whose states start with zeros at the run's step, or
// "" if there are none. Adam's bias correction then does not fit them, so their first update is not
// Adam's first. Throws CollectiveError unless it is `allowed`. Collective.
std::string announce_fresh(const CheckpointedRun& run, const std::vector<std::string>& fresh,
                           bool allowed);

}  // namespace anymesh
