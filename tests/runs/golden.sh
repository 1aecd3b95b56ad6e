#!/usr/bin/env bash
# Checkpoints of every layout version so far resume on their mesh and on another. tests/fixtures/own has them, saved at step 4,
# and the losses of the run that continued. Version 0 has no manifest.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
tar xf "$here/../fixtures/own/versions.tar.xz"
model+=(--lr-decay-iters 20)

for version in 0 1; do
  # Another processor may round differently, and bf16 rounds coarsely.
  for case in "pipeline 1e-5 1,2,2,1" "pipeline 1e-5 2,1,1,0" "sharded 5e-3 1,1,2,3 --bf16" "sharded 5e-3 1,2,1,2 --bf16"; do
    read -r name tolerance mesh flags <<<"$case"
    rm -f test.csv
    train "$mesh" test.csv --train-iters 8 $flags --load "$version/$name" --verify-checkpoint >log 2>&1 || fail "$case: $(tail -5 log)"
    # Version 0 had no manifest.
    ! grep WARNING log | grep -v "has no manifest.json to verify it by" >unexpected || fail "$case: $(cat unexpected)"
    [[ $(grep -c "to verify it by" log) == $((version == 0)) ]] || fail "$case: $(cat log)"
    close "$name.csv" test.csv $tolerance 5 "version $version, $name, tp,pp,dp,zero = $mesh"
  done
done
