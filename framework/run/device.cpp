#include "framework/run/device.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstdlib>

#include "framework/comm/agreement.h"
#include "framework/comm/staged_communicator.h"
#include "framework/config/require.h"
#include "framework/cuda/cuda.h"

namespace anymesh {
namespace {

bool on_gpus(const DeviceConfig& config, const CudaDevices& mine, Communicator& world) {
  if (config.device == "cpu") return false;
  if (config.device == "cuda" || config.distributed_backend == "nccl") {
    const std::string asked =
        config.device == "cuda" ? "--device cuda: " : "--distributed-backend nccl: ";
    throw_together(
        world, mine.count > 0
                   ? ""
                   : asked + mine.missing + "; use --device cpu, with --distributed-backend mpi");
  }
  return max_over(world, mine.count > 0 ? 0 : 1) == 0;  // by default only if all ranks can
}

// Throws for features that this version has on the CPU only.
void check_features(const Config& config) {
  const std::string end = " is not for GPUs in this version; leave it out, or use --device cpu";
  const OffloadConfig& offload = config.engine.zero.offload;
  require(offload.optimizer == "none", "--offload-optimizer", end);
  require(offload.param == "none", "--offload-param", end);
  require(config.parallel.same_bits == 0, "--same-bits", end);
}

// NCCL needs a GPU for each rank. Processes may see different GPUs under the same number, so this
// compares uuids. NCCL_HOSTID makes NCCL take a rank for one of another machine.
void check_distinct(const CudaDevice& mine, Communicator& world, Communicator& local) {
  const char* host = std::getenv("NCCL_HOSTID");
  std::vector<std::string> uuids = gather_strings(local, mine.uuid + (host ? host : ""));
  std::sort(uuids.begin(), uuids.end());
  const auto gpus = std::unique(uuids.begin(), uuids.end()) - uuids.begin();
  throw_together(world, gpus == local.size()
                            ? ""
                            : c10::str("--distributed-backend nccl needs a GPU for each rank, got ",
                                       local.size(), " ranks and ", gpus,
                                       " GPUs on a machine; start fewer ranks, or use "
                                       "--distributed-backend mpi, by which ranks share a GPU"));
}

}  // namespace

Placement place(const Config& config, const Job& job) {
  const std::chrono::seconds patience = config.run.patience();
  const CommPtr world = job.world({.time = patience});
  const CudaDevices devices = cuda_devices();
  if (config.run.local_ranks > 0 || !on_gpus(config.device, devices, *world))
    return {torch::kCPU, world, ""};
  const CommPtr local = job.local();
  const int index = local->rank() % devices.count;
  CudaDevice device;
  all_or_none(*world, [&] {
    check_features(config);
    device = cuda_device(index);
    use_cuda_device(index, config.device.deterministic_mode);
  });
  if (config.run.pretend_ranks > 0)
    return {{torch::kCUDA, static_cast<c10::DeviceIndex>(index)}, world, "cuda, " + device.name};
  const bool nccl = config.device.distributed_backend != "mpi";
  if (nccl) check_distinct(device, *world, *local);
  return {{torch::kCUDA, static_cast<c10::DeviceIndex>(index)},
          nccl ? nccl_communicator(world, patience) : staged_communicator(world),
          c10::str("cuda, ", device.name, ", by ", nccl ? "nccl" : "mpi")};
}

}  // namespace anymesh
