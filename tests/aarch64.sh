#!/usr/bin/env bash
# Compiles the format library and its tests for aarch64 by Debian's cross compiler, and runs them under qemu-user. Adds the
# architecture arm64 to this Debian and installs its packages, so it wants root, and best a Debian of its own
# (tests/fresh_root.sh FOLDER tests/aarch64.sh).
#
#   tests/aarch64.sh [FOLDER]          FOLDER is the build's, default build/aarch64
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=${1:-build/aarch64}
if ! dpkg-query -W libgmock-dev:arm64 g++-aarch64-linux-gnu qemu-user >/dev/null 2>&1; then
  dpkg --add-architecture arm64
  apt-get update -qq
  libraries=(libsentencepiece-dev libpcre2-dev libutf8proc-dev libdeflate-dev zlib1g-dev libzstd-dev libgtest-dev libgmock-dev)
  DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends cmake ninja-build xz-utils qemu-user g++-aarch64-linux-gnu \
    libcxxopts-dev nlohmann-json3-dev "${libraries[@]/%/:arm64}" >/dev/null
fi
cmake -G Ninja -B "$build" -DANYMESH_TOOLS_ONLY=ON -DCMAKE_UNITY_BUILD=ON -DCMAKE_BUILD_TYPE=Release -DCMAKE_SYSTEM_NAME=Linux \
  -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ -DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc \
  -DCMAKE_LIBRARY_ARCHITECTURE=aarch64-linux-gnu -DCMAKE_FIND_ROOT_PATH=/usr/aarch64-linux-gnu\;/ \
  >"$build.log" || { cat "$build.log"; exit 1; }
cmake --build "$build" --target format_unit_tests ds_to_universal ds_reshard ckpt
file=$(head -c 20 "$build/bin/ckpt" | od -A n -t x1 -j 18 -N 2)
[[ $file == " b7 00" ]] || { echo "ckpt is not for aarch64: machine $file" >&2; exit 1; }
ctest --test-dir "$build" -j "$(nproc)" -R unpack_ | tail -3
# One case counts memory by the host's limits.
qemu-aarch64 -L / "$build/bin/format_unit_tests" --gtest_brief=1 --gtest_filter=-HostileWords.WantOfMemoryIsSaidOfTheFile
