#include "framework/format/dialects/foreign.h"

#include "framework/format/dialects/dtensor_files.h"
#include "framework/format/dialects/megatron_fsdp.h"
#include "framework/format/dialects/torch_dist.h"

namespace anymesh {

bool is_foreign(const std::filesystem::path& folder) {
  return !dcp_folders(folder).empty() || has_dtensor_files(folder);
}

ForeignModel read_foreign(const std::filesystem::path& folder, RecordChecksums* checks) {
  if (dcp_folders(folder).empty())
    return {"DTensors in files of ranks", read_dtensor_files(folder, checks)};
  DcpFolder dcp = read_dcp(folder, checks);
  if (is_torch_dist(folder))
    return {"torch_dist of Megatron-Core", torch_dist_model(std::move(dcp))};
  if (is_megatron_fsdp(dcp)) return {"fsdp_dtensor of Megatron-FSDP", megatron_fsdp_model(dcp)};
  return {"torch.distributed.checkpoint", dcp_model(dcp)};
}

}  // namespace anymesh
