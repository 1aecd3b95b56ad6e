#!/usr/bin/env bash
# Installs the packages that Anymesh needs to build and run, and skips those that are already there:
#   tools/setup.sh                 Debian/Ubuntu packages, and LibTorch into .deps/ of this checkout
#   tools/setup.sh --tests         also what the tests need, such as GoogleTest, and ccache
#   tools/setup.sh --lint          also what lint and sanitizers need: clang and its tools
#   tools/setup.sh --cuda          also what LibTorch's CUDA half needs beside the CUDA Toolkit (cmake --preset cuda)
#   tools/setup.sh --tools         only what the tools need, without LibTorch and MPI; builds them into build/tools/bin
#   tools/setup.sh --no-torch      packages only (you have a LibTorch: cmake -DCMAKE_PREFIX_PATH=/path/to/libtorch)
# Options can be combined. Says how long downloads took. Works as root or with sudo. Without either it prints the packages for someone to install.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

with_cuda='' with_torch=yes tools_only='' with_tests='' with_lint=''
for option in "$@"; do
  case $option in
    --cuda) with_cuda=yes ;;
    --no-torch) with_torch='' ;;
    --tools) tools_only=yes ;;
    --tests) with_tests=yes ;;
    --lint) with_lint=yes ;;
    *) echo "setup.sh: $option is not --tests, --lint, --cuda, --tools or --no-torch" >&2; exit 2 ;;
  esac
done

say() { printf '[setup] %s\n' "$*"; }
pinned() { sed -n "s/^set($1 \(.*\))$/\1/p" cmake/versions.cmake; }
# fetch WHEEL...: downloads wheels and unpacks them into .deps/python.
fetch() {
  local begun=$SECONDS
  mkdir -p "$deps/wheels"
  python3 -m pip download --quiet --no-deps --only-binary=:all: --dest "$deps/wheels" "$@"
  say "downloaded in $((SECONDS - begun)) s; unpacking $(du -sm "$deps/wheels" | cut -f1) MiB"
  for wheel in "$deps"/wheels/*.whl; do unzip -q -o "$wheel" -d "$deps/python"; done
  rm -r "$deps/wheels"
}

packages=(g++ cmake ninja-build libcxxopts-dev nlohmann-json3-dev libsentencepiece-dev libpcre2-dev libutf8proc-dev libdeflate-dev
          zlib1g-dev libzstd-dev)
[[ $tools_only ]] || packages+=(libopenmpi-dev openmpi-bin python3 python3-pip procps unzip xz-utils bible-kjv)
[[ ! $with_tests ]] || packages+=(libgtest-dev libgmock-dev ccache python3-dev python3-venv iproute2 patch)
[[ ! $with_lint ]] || packages+=(clang clang-format clang-tidy libclang-rt-dev)

missing=()
for p in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing+=("$p")
done
if ((${#missing[@]} == 0)); then
  say "all ${#packages[@]} packages are installed"
else
  as_root=()
  if ((EUID != 0)); then
    if ! sudo -n true 2>/dev/null && ! { [[ -t 0 ]] && sudo true; }; then
      say "these packages are missing, and neither root nor sudo is at hand; have them installed, then run me again:"
      say "  apt-get install ${missing[*]}"
      exit 1
    fi
    as_root=(sudo)
  fi
  say "installing ${missing[*]}"
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends \
      -o APT::Keep-Downloaded-Packages=false "${missing[@]}" | sed -n 's/^\(Need to get\|After this\) /[setup] &/p'
  say "packages: $SECONDS s"
fi

if [[ $tools_only ]]; then
  cmake -G Ninja -B build/tools -DANYMESH_TOOLS_ONLY=ON -DBUILD_TESTING=OFF -DCMAKE_UNITY_BUILD=ON >/dev/null
  cmake --build build/tools
  say "the tools are in build/tools/bin"
  exit 0
fi
[[ $with_torch ]] || exit 0

torch=$(pinned ANYMESH_TORCH_VERSION)
deps=${ANYMESH_DEPS:-$PWD/.deps}
stamp=$deps/torch-$torch.done
if [[ -e $stamp ]]; then
  say "LibTorch $torch is in $deps"
else
  # The wheel's own requirements are 3 GB of GPU libraries. libtorch_cpu.so needs only these two to load.
  cuda=$(pinned ANYMESH_CUDA_WHEEL_VERSION)
  say "downloading LibTorch $torch (PyPI wheel, about 0.5 GB) into $deps"
  fetch "torch==$torch" "nvidia-cuda-cupti==$cuda.*" "nvidia-cuda-runtime==$cuda.*"
  touch "$stamp"
fi

if [[ $with_cuda ]]; then
  nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
  [[ -x $nvcc ]] || { say "no nvcc: install the CUDA Toolkit $(pinned ANYMESH_CUDA_WHEEL_VERSION) first"; exit 1; }
  # Asks nvcc for the toolkit, as nvcc may be a script that calls another.
  toolkit=$(cd "$("$nvcc" --dryrun -x cu /dev/null 2>&1 | sed -n 's/^#\$ TOP=//p')" && pwd -P)
  wheels=()
  # needs LIBRARY WHEEL VERSION: downloads the wheel unless the system or an earlier run has the library.
  needs() {
    compgen -G "$deps/python/nvidia/*/lib/$1" >/dev/null || [[ -e $toolkit/lib64/$1 ]] ||
      /sbin/ldconfig -p | grep "^[[:space:]]*$1 " >/dev/null || wheels+=("$2==$(pinned "$3")")
  }
  needs libcudnn.so.9 nvidia-cudnn-cu13 ANYMESH_CUDNN_VERSION
  needs libnccl.so.2 nvidia-nccl-cu13 ANYMESH_NCCL_VERSION
  needs libcufile.so.0 nvidia-cufile ANYMESH_CUFILE_VERSION
  needs libcusparseLt.so.0 nvidia-cusparselt-cu13 ANYMESH_CUSPARSELT_VERSION
  needs libnvshmem_host.so.3 nvidia-nvshmem-cu13 ANYMESH_NVSHMEM_VERSION
  if ((${#wheels[@]} > 0)); then
    say "downloading ${wheels[*]}"
    fetch "${wheels[@]}"
  fi
  say "LibTorch's CUDA half has what it needs, with the CUDA Toolkit in $toolkit"
fi
say "ready"
