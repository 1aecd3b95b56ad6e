#!/usr/bin/env bash
# Installs what Anymesh needs to build and run, and nothing that is already there:
#   tools/setup.sh                 Debian/Ubuntu packages, and LibTorch into .deps/ of this checkout
#   tools/setup.sh --no-torch      packages only (you have a LibTorch: cmake -DCMAKE_PREFIX_PATH=/path/to/libtorch)
# Works as root or with sudo. Without either it prints the packages for you to have installed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf '[setup] %s\n' "$*"; }
pinned() { sed -n "s/^set($1 \(.*\))$/\1/p" cmake/versions.cmake; }

packages=(g++ cmake ninja-build libopenmpi-dev openmpi-bin libcxxopts-dev nlohmann-json3-dev libgtest-dev libgmock-dev
          libbenchmark-dev clang clang-format clang-tidy libclang-rt-dev ccache python3 python3-pip
          python3-venv procps unzip xz-utils bible-kjv)

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
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "${missing[@]}" >/dev/null
fi

if [[ ${1:-} == --no-torch ]]; then exit 0; fi

torch=$(pinned ANYMESH_TORCH_VERSION)
deps=${ANYMESH_DEPS:-$PWD/.deps}
stamp=$deps/torch-$torch.done
if [[ -e $stamp ]]; then
  say "LibTorch $torch is in $deps"
else
  # The wheel's own requirements name 3 GB of GPU libraries; libtorch_cpu.so needs only these two to load.
  cuda=$(pinned ANYMESH_CUDA_WHEEL_VERSION)
  say "downloading LibTorch $torch (PyPI wheel, about 0.5 GB) into $deps"
  mkdir -p "$deps/wheels"
  python3 -m pip download --quiet --no-deps --only-binary=:all: --dest "$deps/wheels" \
      "torch==$torch" "nvidia-cuda-cupti==$cuda.*" "nvidia-cuda-runtime==$cuda.*"
  say "unpacking"
  for wheel in "$deps"/wheels/*.whl; do unzip -q -o "$wheel" -d "$deps/python"; done
  rm -r "$deps/wheels"
  touch "$stamp"
fi
say "ready"
