#!/usr/bin/env bash
# Sets up, builds and runs every test. Says how long each of the three took, and lists the ten longest tests. Arguments go to ctest:
#
#   tests/run.sh                    all of them
#   tests/run.sh -L unit            one tier: unit, ranks, run, tutorial
#   tests/run.sh -R universal -V    by name, with the output
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tools/setup.sh --tests ${CMAKE_PREFIX_PATH:+--no-torch}
ready=$SECONDS
cmake --preset release
cmake --build --preset release
built=$SECONDS
status=0
ctest --preset release -j "$(nproc)" "$@" | tee build/ctest.log || status=$?
printf '\nslowest, seconds:\n'
sed -nE 's/^ *[0-9]+\/[0-9]+ Test +#[0-9]+: ([^ ]+) .* ([0-9.]+) sec.*/\2 \1/p' build/ctest.log | sort -rn |
  awk 'NR <= 10 {printf "%8.1f  %s\n", $1, $2}'
printf 'set-up %d s, build %d s, tests %d s\n' $ready $((built - ready)) $((SECONDS - built))
exit $status
