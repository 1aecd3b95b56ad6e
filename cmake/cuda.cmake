# The preset `cuda` adds the other half of LibTorch, and NCCL, to the target `libtorch`. Only framework/cuda and
# framework/kernels/cuda include their headers, through the target `cuda_headers`.
#
# The system provides the compiler, the CUDA Toolkit's libraries and, if it has them, cuDNN and NCCL. PyPI's wheels provide the
# other needs of libtorch_cuda (tools/setup.sh --cuda).
set(CMAKE_CUDA_ARCHITECTURES 80 90a)
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)
find_program(CMAKE_CUDA_COMPILER nvcc PATHS /usr/local/cuda/bin)
enable_language(CUDA)
find_package(CUDAToolkit ${ANYMESH_CUDA_WHEEL_VERSION} REQUIRED)

file(GLOB nccl_wheel ${LIBTORCH_PARENT}/nvidia/nccl)
find_path(NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ${nccl_wheel}/include)
find_library(NCCL_LIBRARY NAMES libnccl.so.2 HINTS ${CUDAToolkit_LIBRARY_DIR} ${nccl_wheel}/lib)
if(NOT NCCL_INCLUDE OR NOT NCCL_LIBRARY)
  message(FATAL_ERROR "No NCCL (nccl.h, libnccl.so.2) beside the CUDA Toolkit. Run tools/setup.sh --cuda")
endif()
message(STATUS "CUDA Toolkit ${CUDAToolkit_VERSION} in ${CUDAToolkit_LIBRARY_DIR}, ${NCCL_LIBRARY}")

add_library(cuda_headers INTERFACE)
target_include_directories(cuda_headers SYSTEM INTERFACE ${CUDAToolkit_INCLUDE_DIRS} ${NCCL_INCLUDE})

# No program refers to a symbol of torch_cuda: its operators register themselves when it is loaded. Build machines lack the
# driver's libcuda. The rpath is of the old kind, because libtorch_cuda's own libraries are found through it too.
target_link_options(libtorch INTERFACE -Wl,--allow-shlib-undefined -Wl,--disable-new-dtags
    -Wl,-rpath,${CUDAToolkit_LIBRARY_DIR} -Wl,-rpath-link,${CUDAToolkit_LIBRARY_DIR})
target_link_libraries(libtorch INTERFACE -Wl,--push-state,--no-as-needed torch_cuda c10_cuda -Wl,--pop-state
    ${NCCL_LIBRARY} $<LINK_ONLY:CUDA::cudart>)
