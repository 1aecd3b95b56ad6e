#pragma once

#include <filesystem>
#include <string>

#include "framework/format/dialects/dcp.h"

namespace anymesh {

// A model and its optimizer as another framework saved them:
//
//   torch.distributed.checkpoint    of FSDP2, torchtitan or accelerate (dcp.h)
//   torch_dist                      of Megatron-Core (torch_dist.h)
//   fsdp_dtensor                    of Megatron-FSDP (megatron_fsdp.h)
//   files of each rank              of veRL (dtensor_files.h)
struct ForeignModel {
  std::string description;
  DcpModel model;
};

bool is_foreign(const std::filesystem::path& folder);
ForeignModel read_foreign(const std::filesystem::path& folder, RecordChecksums* checks = nullptr);

}  // namespace anymesh
