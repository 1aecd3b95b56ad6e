#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "framework/checkpoint/checkpoint.h"
#include "framework/config/config.h"
#include "framework/engine.h"

namespace anymesh {

// The state that a run starts from: --pretrained-checkpoint, and then --load.

// Returns the folder of --pretrained-checkpoint, for a load, and which checkpoint of it to load:
// the newest, by the pointer file that it has, or, if it is a tag's own folder, that one.
std::pair<std::filesystem::path, LoadOptions> pretrained_of(const CheckpointConfig& checkpoint);

// Loads both. Returns lines to print. A first run may load from the folder that it will save to, so
// that the same command can restart it. Collective.
std::vector<std::string> load_start(const CheckpointConfig& checkpoint, Engine& engine,
                                    const ImportForeign& import);

// Refuses --exclude-frozen-parameters where there are none, or where nobody would have them. Adds
// lines to `report`. Collective.
void check_frozen(const Config& config, Engine& engine, std::vector<std::string>& report);

}  // namespace anymesh
