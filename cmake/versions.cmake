# Every pinned version, stated once: CMake includes this file and tools/setup.sh reads it.
set(ANYMESH_TORCH_VERSION 2.11.0)
set(ANYMESH_CUDA_WHEEL_VERSION 13.0)
