#!/usr/bin/env bash
# Stop and resume on the same mesh: every later loss is bit-identical to the uninterrupted run's. Dropout on.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

for mesh in 1,1,1,0 1,1,3,1 2,2,1,0 2,2,2,1 1,2,3,2 2,1,2,3 2,2,2,3; do
  for precision in "" --bf16; do
    train $mesh whole.csv --train-iters 16 $precision >whole.log || fail "$(tail -5 whole.log)"
    train $mesh parts.csv --train-iters 16 $precision --save ckpt --exit-interval 8 >parts.log || fail "$(tail -5 parts.log)"
    train $mesh parts.csv --train-iters 16 $precision --load ckpt >parts.log || fail "$(tail -5 parts.log)"
    same whole.csv parts.csv "tp,pp,dp,zero = $mesh ${precision:-fp32}"
    rm -r ckpt
  done
done
