#!/usr/bin/env bash
# Sets up, builds and runs every test; arguments go to ctest:
#
#   tests/run.sh                    all of them
#   tests/run.sh -L unit            one tier: unit, mpi, run
#   tests/run.sh -R universal -V    by name, with the output
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tools/setup.sh ${CMAKE_PREFIX_PATH:+--no-torch}
cmake --preset release
cmake --build --preset release
exec ctest --preset release -j "$(nproc)" "$@"
