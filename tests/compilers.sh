#!/usr/bin/env bash
# Builds the trainer and the tools with other compilers, unoptimised, and continues old checkpoints on four meshes with each. Ends
# at the first that fails. docs/building.md lists those that were tried.
#
#   tests/compilers.sh g++-11 clang-16
#
# The names are Debian's packages; a missing one is installed, which needs root. CMAKE is the cmake to use, CMAKE_PREFIX_PATH
# another LibTorch.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

for compiler in "$@"; do
  packages=("$compiler")
  [[ $compiler != clang* ]] || packages+=("libomp${compiler#clang}-dev")
  dpkg-query -W "${packages[@]}" >/dev/null 2>&1 ||
    DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${packages[@]}" >/dev/null
  build=build/compilers/$compiler
  started=$SECONDS
  mkdir -p "$build"
  "${CMAKE:-cmake}" -G Ninja -S . -B "$build" -D CMAKE_UNITY_BUILD=ON -D CMAKE_CXX_COMPILER="${compiler/clang/clang++}" \
      -D CMAKE_CXX_FLAGS_RELEASE=-O0 -D BUILD_TESTING=OFF >"$build/configure.log"
  "${CMAKE:-cmake}" --build "$build" >"$build/build.log" || { tail -50 "$build/build.log" >&2; exit 1; }
  warnings=$(grep -c 'warning:' "$build/build.log" || true)
  bash tests/runs/golden.sh "$build/bin" >"$build/golden.log" || { cat "$build/golden.log" >&2; exit 1; }
  printf '%s: %d warnings, %d old checkpoints continued, %d s\n' "$("${compiler/clang/clang++}" --version | head -1)" \
      "$warnings" "$(grep -c '^ok: version\|tp,pp,dp' "$build/golden.log")" $((SECONDS - started))
done
