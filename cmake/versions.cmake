# Every pinned version, stated once: CMake includes this file, tools/setup.sh and tests/interop read it.
set(ANYMESH_TORCH_VERSION 2.11.0)
set(ANYMESH_CUDA_WHEEL_VERSION 13.0)
set(ANYMESH_DEEPSPEED_VERSION 0.19.8)
set(ANYMESH_TRANSFORMERS_VERSION 5.23.0)
