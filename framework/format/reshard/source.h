#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "framework/format/reshard/rank_model.h"
#include "framework/format/reshard/reshard.h"
#include "framework/format/torch_file/record_checksums.h"

namespace anymesh {

// The source as it is read, and its ranks as they shall be.
struct ReshardSource {
  CheckpointMesh mesh;
  std::vector<Value> model_states;
  Value optimizer_state;
  std::vector<RankModel> ranks;  // none if only the number of dp ranks of ZeRO 0 changes
  std::vector<std::filesystem::path> layer_files;     // to be copied
  std::vector<std::pair<std::string, Value>> layers;  // files in another precision
  ExpertSpread experts;                               // as the target spreads them
};

// Opens the input for the target. Fills in report.from and report.to. Throws a UserError for a
// target that it cannot have. `checks` must outlive the result.
ReshardSource open_source(const ReshardOptions& options, const std::filesystem::path& input,
                          RecordChecksums& checks, ReshardReport& report);

}  // namespace anymesh
