#include <ATen/Context.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>

#include <cstdlib>

#include "framework/cuda/cuda.h"
#include "framework/util/format.h"

namespace anymesh {
namespace {

cudaDeviceProp properties_of(int index) {
  cudaDeviceProp properties;
  C10_CUDA_CHECK(cudaGetDeviceProperties(&properties, index));
  return properties;
}

}  // namespace

CudaDevices cuda_devices() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaSuccess && count > 0) return {count, ""};
  (void)cudaGetLastError();  // clears the error, or the next call would report it
  return {0, std::string("no GPU found on this machine (CUDA says: ") + cudaGetErrorString(status) +
                 ")"};
}

CudaDevice cuda_device(int index) {
  const cudaDeviceProp properties = properties_of(index);
  std::string uuid;
  for (const char byte : properties.uuid.bytes)
    uuid += string_printf("%02x", static_cast<unsigned char>(byte));
  return {properties.name, uuid};
}

void use_cuda_device(int index, bool deterministic) {
  const cudaDeviceProp properties = properties_of(index);
  TORCH_CHECK(properties.major >= 8, "GPU ", index, ", ", properties.name,
              ", is of compute capability ", properties.major, ".", properties.minor,
              "; the kernels are built for 8.0 and above (use --device cpu)");
  c10::cuda::set_device(static_cast<c10::DeviceIndex>(index));
  at::Context& context = at::globalContext();
  if (deterministic) {
    setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);  // cuBLAS asks for it
    context.setDeterministicAlgorithms(true, /*warn_only=*/false);
    context.setDeterministicCuDNN(true);
    context.setBenchmarkCuDNN(false);
    // Leaves the attention of plain operators.
    context.setSDPUseCuDNN(false);
    context.setSDPUseFlash(false);
    context.setSDPUseMemEfficient(false);
  }
  context.lazyInitDevice(c10::DeviceType::CUDA);
}

int64_t cuda_peak_memory() {
  if (!c10::cuda::CUDACachingAllocator::get()->initialized()) return 0;
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(c10::cuda::current_device());
  return stats.allocated_bytes[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)]
      .peak;
}

}  // namespace anymesh
