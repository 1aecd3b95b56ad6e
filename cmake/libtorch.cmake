# The target `libtorch`: the CPU half of LibTorch, c10 and torch_cpu. The other half is in cuda.cmake.
#
# CMake looks for it in CMAKE_PREFIX_PATH (any LibTorch), then in .deps/ (the PyPI wheel, by tools/setup.sh). An installed
# Anymesh last tries the LibTorch it was built with (ANYMESH_BUILT_WITH). We import the two libraries ourselves because the
# wheel's find_package(Torch) demands a CUDA toolkit.
set(deps ${PROJECT_SOURCE_DIR}/.deps)
if(DEFINED ENV{ANYMESH_DEPS})
  set(deps $ENV{ANYMESH_DEPS})
endif()
set(ANYMESH_DEPS ${deps} CACHE PATH "What tools/setup.sh downloaded")
find_path(LIBTORCH_ROOT include/torch/csrc/api/include/torch/torch.h
          PATHS ${ANYMESH_DEPS}/python/torch ${ANYMESH_BUILT_WITH} PATH_SUFFIXES . libtorch torch NO_CACHE)
if(NOT LIBTORCH_ROOT)
  message(FATAL_ERROR "No LibTorch found. Run tools/setup.sh, or give one: cmake -DCMAKE_PREFIX_PATH=/path/to/libtorch")
endif()

# The torch_cpu of a CUDA wheel needs libcupti and libcudart beside it. They are found at run time through the rpath.
get_filename_component(LIBTORCH_PARENT ${LIBTORCH_ROOT}/.. ABSOLUTE)
file(GLOB LIBTORCH_NEEDS ${LIBTORCH_PARENT}/nvidia/*/lib)

file(STRINGS ${LIBTORCH_ROOT}/include/torch/headeronly/version.h version_lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
string(REGEX REPLACE ".*MAJOR ([0-9]+).*MINOR ([0-9]+).*PATCH ([0-9]+).*" "\\1.\\2.\\3" LIBTORCH_VERSION "${version_lines}")
message(STATUS "LibTorch ${LIBTORCH_VERSION} in ${LIBTORCH_ROOT}")

# An imported target is not exported: a project that finds an installed Anymesh imports LibTorch itself.
add_library(libtorch INTERFACE IMPORTED)
target_include_directories(libtorch SYSTEM INTERFACE
    ${LIBTORCH_ROOT}/include ${LIBTORCH_ROOT}/include/torch/csrc/api/include)
target_link_directories(libtorch INTERFACE ${LIBTORCH_ROOT}/lib)
# ATen's parallel_for is a template. Instantiated without OpenMP, it runs on one thread. The sanitizers need that, because they
# do not know OpenMP's barriers.
if(NOT ANYMESH_SANITIZE)
  find_package(OpenMP REQUIRED COMPONENTS CXX)
  target_compile_options(libtorch INTERFACE $<$<COMPILE_LANGUAGE:CXX>:${OpenMP_CXX_FLAGS}>)
  target_link_options(libtorch INTERFACE ${OpenMP_CXX_FLAGS})
endif()
target_link_libraries(libtorch INTERFACE torch_cpu c10)
set(LIBTORCH_RPATH ${LIBTORCH_ROOT}/lib ${LIBTORCH_NEEDS})
foreach(dir ${LIBTORCH_RPATH})
  target_link_options(libtorch INTERFACE -Wl,-rpath,${dir} -Wl,-rpath-link,${dir})
endforeach()
